//! How programs find the device: by loading libibverbs themselves, and by paths.

mod common;

use std::ffi::{CStr, CString, c_char};

#[test]
fn a_libibverbs_that_is_loaded_by_hand_is_the_preloaded_one() {
    common::passes("loads_by_hand", &[]);
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn loads_by_hand() {
    // SAFETY: dlopen and dlsym with C strings; what is looked up is compared, not called.
    unsafe {
        let global = libc::dlvsym(
            libc::RTLD_DEFAULT,
            c"ibv_get_device_list".as_ptr(),
            c"IBVERBS_1.1".as_ptr(),
        );
        assert!(!global.is_null());
        for name in [
            c"libibverbs.so.1",
            c"libibverbs.so",
            c"/nowhere/libibverbs.so.1",
        ] {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "{name:?}");
            let found = libc::dlsym(handle, c"ibv_get_device_list".as_ptr());
            assert_eq!(found, global, "{name:?}");
            let versioned =
                libc::dlvsym(handle, c"ibv_qp_to_qp_ex".as_ptr(), c"IBVERBS_1.6".as_ptr());
            assert!(!versioned.is_null(), "{name:?}");
            assert_eq!(libc::dlclose(handle), 0);
        }
        // Everything else is loaded as ever.
        let maths = libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW);
        assert!(!libc::dlsym(maths, c"cos".as_ptr()).is_null());
        assert!(!libc::dlopen(std::ptr::null(), libc::RTLD_NOW).is_null());
        assert!(libc::dlopen(c"libibverbsx.so".as_ptr(), libc::RTLD_NOW).is_null());
        let said = CStr::from_ptr(libc::dlerror()).to_string_lossy();
        assert!(said.contains("libibverbsx.so"), "{said}");
    }
}

/// UCX reads this when it has loaded its part for verbs; what the user says counts.
const UCX: &str = "UCX_UD_VERBS_ETH_DGID_CHECK";

#[test]
fn ucx_is_told_about_service_levels_where_it_comes() {
    common::passes("loads_ucx", &[]);
    common::passes("loads_ucx", &[(UCX, "y")]);
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn loads_ucx() {
    let before = std::env::var(UCX).ok();
    let load = |name: &CStr| {
        // SAFETY: a C string; nothing of the library is used.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        std::env::var(UCX).ok()
    };
    assert_eq!(load(c"libm.so.6"), before, "none of UCX");
    assert_eq!(load(c"/nowhere/libuct_ibx.so"), before, "none of UCX");
    let told = before.unwrap_or_else(|| "n".into());
    assert_eq!(load(c"/nowhere/ucx/libuct_ib.so.0"), Some(told));
}

#[test]
fn the_paths_of_the_device_are_there() {
    common::passes("paths", &[]);
}

fn stat(path: &str) -> Result<libc::stat, i32> {
    let path = CString::new(path).expect("no zero byte");
    // SAFETY: a C string, and a struct of integers to write to.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        match libc::stat(path.as_ptr(), &mut stat) {
            0 => Ok(stat),
            _ => Err(*libc::__errno_location()),
        }
    }
}

fn kind(path: &str) -> Result<u32, i32> {
    stat(path).map(|stat| stat.st_mode & libc::S_IFMT)
}

fn may(path: &str, mode: i32) -> bool {
    let path = CString::new(path).expect("no zero byte");
    // SAFETY: a C string.
    unsafe { libc::access(path.as_ptr(), mode) == 0 }
}

fn text(path: &str) -> Option<String> {
    let path = CString::new(path).expect("no zero byte");
    let mut text = [0u8; 64];
    // SAFETY: a C string, and a buffer of the length that is told.
    let length = unsafe {
        let fd = libc::open(path.as_ptr().cast::<c_char>(), libc::O_RDONLY);
        if fd < 0 {
            return None;
        }
        let length = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        length
    };
    Some(String::from_utf8_lossy(&text[..length as usize]).into_owned())
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn paths() {
    let device = "/dev/infiniband/uverbs-soft0";
    assert_eq!(kind(device), Ok(libc::S_IFCHR));
    assert!(may(device, libc::R_OK | libc::W_OK));
    assert!(!may(device, libc::X_OK));
    assert_eq!(kind("/dev/infiniband/uverbs-soft1"), Err(libc::ENOENT));
    for directory in [
        "/sys/class/infiniband",
        "/sys/class/infiniband/",
        "/sys/class/infiniband/soft0/ports/1",
    ] {
        assert_eq!(kind(directory), Ok(libc::S_IFDIR), "{directory}");
    }
    let kinds = "/sys/class/infiniband/soft0/ports/1/gid_attrs/types/0";
    assert_eq!(text(kinds).as_deref(), Some("RoCE v2\n"));
    assert_eq!(stat(kinds).map(|stat| stat.st_size), Ok(8));
    for nothing in [
        "/sys/class/infiniband/soft0/ports/2",
        "/sys/class/infiniband/soft0/ports/1/gid_attrs/types/1",
        "/sys/class/infiniband/soft1",
        "/sys/class/infinibandx",
    ] {
        assert_eq!(kind(nothing), Err(libc::ENOENT), "{nothing}");
        assert_eq!(text(nothing), None, "{nothing}");
    }
    // What is really there is as it is.
    assert_eq!(kind("/dev/null"), Ok(libc::S_IFCHR));
    assert_eq!(text("/nowhere"), None);
}

#[test]
fn the_paths_can_be_turned_off() {
    common::passes("no_paths", &[("RDMA_SOFT_FACADE", "0")]);
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn no_paths() {
    assert_eq!(kind("/dev/infiniband/uverbs-soft0"), Err(libc::ENOENT));
    assert_eq!(kind("/sys/class/infiniband/soft0"), Err(libc::ENOENT));
}

#[test]
fn sysfs_files_are_read_as_libibverbs_reads_them() {
    common::passes("sysfs_files", &[]);
}

#[test]
#[ignore = "run by another test, with the library preloaded"]
fn sysfs_files() {
    type Function = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> i32;
    // SAFETY: the preloaded library has the function, of this type (libibverbs: driver.h).
    let read: Function = unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"ibv_read_sysfs_file".as_ptr());
        assert!(!address.is_null());
        std::mem::transmute(address)
    };
    let mut text = [0u8; 16];
    let mut file = |dir: &CStr, file: &CStr, size| {
        text.fill(b'.');
        // SAFETY: C strings, and a buffer that is no shorter than is told.
        let length = unsafe { read(dir.as_ptr(), file.as_ptr(), text.as_mut_ptr().cast(), size) };
        (length, text)
    };
    let port = c"/sys/class/infiniband/soft0/ports/1";
    assert_eq!(
        file(port, c"gid_attrs/types/0", 16),
        (7, *b"RoCE v2\0........")
    );
    assert_eq!(
        file(port, c"gid_attrs/types/0", 5),
        (4, *b"RoCE\0...........")
    );
    assert_eq!(file(port, c"gid_attrs/types/7", 16).0, -1);
    assert_eq!(file(c"/nowhere", c"nothing", 16).0, -1);
}
