//! A libibverbs with devices of its own: they come first in the list, and their calls go where they went before.

mod common;

use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;

use rdma_core_sys::*;

/// Two devices and what a program does with one of them; a context knows its device, and attributes are recognisable.
const DEVICES: &str = r#"
struct device { void *ops[2]; int type, transport; char name[64], dev_name[64], dev_path[256], ibdev_path[256]; };
struct context { struct device *device; char rest[312]; void *abi_compat; };
struct pd { struct context *context; unsigned handle; };
static struct device devices[2] = {{.type = 1, .name = "stub0"}, {.type = 1, .name = "stub1"}};
static int lists, contexts;
void *ibv_get_device_list(int *count) {
    static struct device *list[3] = {&devices[0], &devices[1], 0};
    lists++;
    *count = 2;
    return list;
}
void ibv_free_device_list(void *list) { lists--; }
char *ibv_get_device_name(struct device *device) { return device->name; }
void *ibv_open_device(struct device *device) {
    static struct context context;
    context.device = device;
    contexts++;
    return &context;
}
int ibv_close_device(struct context *context) { contexts--; return 0; }
int ibv_query_device(struct context *context, unsigned char *attr) { attr[96] = 77; return 0; }
void *ibv_alloc_pd(struct context *context) {
    static struct pd pd;
    pd.context = context;
    return &pd;
}
int ibv_dealloc_pd(struct pd *pd) { return pd->context->device == &devices[1] ? 16 : 5; }
int stub_open(void) { return lists * 16 + contexts; }
"#;

/// Builds it as `libibverbs.so.1` in a directory of its own; `None` where there is no C compiler.
fn build() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("beside");
    std::fs::create_dir_all(&dir).expect("a directory");
    let others = Verbs::SYMBOLS
        .iter()
        .filter(|(name, ..)| !DEVICES.contains(&format!("{name}(")));
    let rest: String = others
        .map(|(name, ..)| format!("unsigned long {name}(void) {{ return 0; }}\n"))
        .collect();
    let (source, library) = (dir.join("stub.c"), dir.join("libibverbs.so.1"));
    std::fs::write(&source, format!("{DEVICES}{rest}")).expect("a source file");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&library, &source])
        .output()
        .ok()?;
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(dir)
}

#[test]
fn devices_of_libibverbs_work_as_before() {
    let Some(dir) = build() else {
        return println!("SKIP preload-beside: there is no C compiler (cc)");
    };
    let path = dir.to_str().expect("text");
    common::passes("beside_a_stub", &[("LD_LIBRARY_PATH", path)]);
}

#[test]
#[ignore = "run by another test, with the library preloaded and a libibverbs of its own"]
fn beside_a_stub() {
    let verbs = Verbs::from_process().expect("the preloaded library is in the process");
    let mut count = 0;
    // SAFETY: `count` is writable; the list is read up to its count and freed after its last use; what is opened is closed.
    unsafe {
        let list = verbs.get_device_list(&mut count);
        let names: Vec<_> = (0..count as usize)
            .map(|i| CStr::from_ptr(verbs.get_device_name(*list.add(i))).to_owned())
            .collect();
        assert_eq!(
            names,
            [c"stub0".to_owned(), c"stub1".into(), c"soft0".into()]
        );
        let (stub1, soft0) = (*list.add(1), *list.add(2));
        let theirs = verbs.open_device(stub1);
        let ours = verbs.open_device(soft0);
        assert!(!ours.is_null());
        assert_eq!((*theirs).device, stub1);
        verbs.free_device_list(list);
        assert_eq!(
            open_at_the_stub(),
            1,
            "its list was freed, its device is open"
        );

        let mut attr = ibv_device_attr::zeroed();
        assert_eq!(verbs.query_device(theirs, &mut attr), 0);
        assert_eq!(attr.vendor_id, 77);
        assert_eq!(verbs.query_device(ours, &mut attr), 0);
        assert_ne!(attr.vendor_id, 77);
        let (pd, own) = (verbs.alloc_pd(theirs), verbs.alloc_pd(ours));
        assert_eq!(
            verbs.dealloc_pd(pd),
            libc::EBUSY,
            "what the stub says of stub1"
        );
        assert_eq!(verbs.dealloc_pd(own), 0);
        assert_eq!(verbs.close_device(theirs), 0);
        assert_eq!(verbs.close_device(ours), 0);
        assert_eq!(open_at_the_stub(), 0);
        // Null is refused, whatever libibverbs would do.
        assert!(verbs.alloc_pd(null_mut()).is_null());
        assert_eq!(ops::errno(), libc::EINVAL);
    }
}

/// What the stub counts: 16 for each list, 1 for each context that is not given back.
fn open_at_the_stub() -> c_int {
    // SAFETY: the stub is loaded, under the path that the preloaded library takes, and not unloaded; its function takes nothing.
    unsafe {
        let path = format!(
            "{}/libibverbs.so.1\0",
            std::env::var("LD_LIBRARY_PATH").expect("set")
        );
        // Not by dlopen(3), which gives the preloaded library for this name.
        let handle = libc::dlmopen(
            libc::LM_ID_BASE,
            path.as_ptr().cast(),
            libc::RTLD_NOW | libc::RTLD_NOLOAD,
        );
        assert!(!handle.is_null(), "the stub is not loaded");
        let address = libc::dlsym(handle, c"stub_open".as_ptr());
        assert!(!address.is_null());
        std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_int>(address)()
    }
}
