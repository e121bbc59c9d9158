//! Where the functions come from: symbols already in the process, or a shared library.

use super::Verbs;
use core::ffi::{CStr, c_char, c_void};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// What rdma-core installs.
const LIBRARY: &str = "libibverbs.so.1";

/// The dynamic linker's own words.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct DlError(String);

/// Why there is no table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library cannot be loaded.
    #[error(
        "cannot load {library}: install rdma-core (Debian: libibverbs1), or use the software device"
    )]
    Library {
        /// Its name or path.
        library: String,
        /// The dynamic linker's own words.
        source: DlError,
    },
    /// The process has no libibverbs in its global scope.
    #[error("this process has no libibverbs: {symbol} is not among its symbols")]
    NotInProcess {
        /// The symbol that was looked for.
        symbol: &'static str,
        /// The dynamic linker's own words.
        source: DlError,
    },
    /// A required symbol is missing.
    #[error("{library} has no symbol {symbol} ({version}): it is not a whole libibverbs")]
    Symbol {
        /// The library, or `this process`.
        library: String,
        /// The symbol.
        symbol: String,
        /// The version that was looked for.
        version: String,
        /// The dynamic linker's own words.
        source: DlError,
    },
    /// A required symbol is there, but not in the version whose signature is known.
    #[error("{library} has {symbol}, but not in version {version}")]
    Version {
        /// The library, or `this process`.
        library: String,
        /// The symbol.
        symbol: String,
        /// The version that was looked for.
        version: String,
        /// The dynamic linker's own words.
        source: DlError,
    },
}

impl LoadError {
    /// A required symbol is not among those of `library`, which has no words of its own for that.
    pub(crate) fn missing(library: &str, symbol: &CStr, version: &CStr) -> Self {
        let text = |text: &CStr| text.to_string_lossy().into_owned();
        LoadError::Symbol {
            library: library.into(),
            symbol: text(symbol),
            version: text(version),
            source: DlError("the symbol's address is null".into()),
        }
    }
}

impl Verbs {
    /// The libibverbs of this process if it has one, else the system's `libibverbs.so.1`.
    ///
    /// Symbols already in the process come first, so that a program which links libibverbs, or runs with a preloaded device,
    /// gets the functions that the rest of it uses. The library is never unloaded: its objects outlive the table.
    ///
    /// # Errors
    /// A [`LoadError`] that names the library, and the symbol and version where one is missing.
    pub fn open() -> Result<Self, LoadError> {
        match Self::from_process() {
            // SAFETY: the system's library of this name is a libibverbs, as it is for every program that links it.
            Err(LoadError::NotInProcess { .. }) => unsafe { Self::load(LIBRARY) },
            found => found,
        }
    }

    /// The functions among the symbols that this process already has: those that the dynamic linker knows, and in a program
    /// that is linked statically those that are in it. (Of a static libibverbs a program takes in only what it uses itself:
    /// link it with `--whole-archive`.)
    ///
    /// # Errors
    /// [`LoadError::NotInProcess`] when there are none at all; the other errors when some are missing.
    pub fn from_process() -> Result<Self, LoadError> {
        let scope = Scope::process();
        let source = "this process";
        match scope.find(source, c"ibv_get_device_list", c"IBVERBS_1.1") {
            Err(LoadError::Symbol { source, .. }) => Self::from_program(source),
            // SAFETY: a symbol of libibverbs' name and version is that of a libibverbs, as it is for the rest of the process.
            _ => unsafe {
                Self::resolve(source, |symbol, version| {
                    scope.find(source, symbol, version)
                })
            },
        }
    }

    /// The functions that were linked into a program without a dynamic linker, which dlsym(3) does not find. `looked` is what
    /// dlsym said.
    fn from_program(looked: DlError) -> Result<Self, LoadError> {
        let source = "this program";
        if Self::bound(c"ibv_get_device_list").is_null() {
            return Err(LoadError::NotInProcess {
                symbol: "ibv_get_device_list",
                source: looked,
            });
        }
        // SAFETY: what the linker bound to a name of libibverbs is a libibverbs, as it is for the rest of the program.
        unsafe {
            Self::resolve(source, |symbol, version| {
                let address = Self::bound(symbol);
                if address.is_null() {
                    return Err(LoadError::missing(source, symbol, version));
                }
                Ok(address)
            })
        }
    }

    /// The functions that a handle for dlsym(3) finds: one of dlopen(3), which must stay open, or one of the special ones. With
    /// `RTLD_NEXT` these are the functions that lie behind the shared object which this code is part of: what a preloaded one
    /// stands in front of.
    ///
    /// `source` says for people where they come from.
    ///
    /// # Safety
    /// What the handle finds under a name and version of [`Verbs::SYMBOLS`] has the prototype of `infiniband/verbs.h`, and is
    /// never unloaded.
    ///
    /// # Errors
    /// As [`load`](Self::load), but for [`LoadError::Library`].
    pub unsafe fn from_handle(
        source: &'static str,
        handle: *mut c_void,
    ) -> Result<Self, LoadError> {
        let scope = Scope(handle);
        // SAFETY: the caller vouches for what is found.
        unsafe {
            Self::resolve(source, |symbol, version| {
                scope.find(source, symbol, version)
            })
        }
    }

    /// The functions of a library given by name or path. It is never unloaded.
    ///
    /// # Safety
    /// The library is a libibverbs: its initialisers may run, and what it exports under a name and version of
    /// [`Verbs::SYMBOLS`] has the prototype of `infiniband/verbs.h`.
    ///
    /// # Errors
    /// [`LoadError::Library`] when it cannot be loaded; the other errors when something is missing in it.
    pub unsafe fn load(library: impl AsRef<Path>) -> Result<Self, LoadError> {
        let library = library.as_ref();
        let name = library.display().to_string();
        // SAFETY: the caller vouches for the library.
        let scope = unsafe { Scope::library(library.as_os_str()) }.map_err(|source| {
            LoadError::Library {
                library: name.clone(),
                source,
            }
        })?;
        let source = intern(name);
        // SAFETY: the caller vouches for the library.
        unsafe {
            Self::resolve(source, |symbol, version| {
                scope.find(source, symbol, version)
            })
        }
    }
}

/// A library stays for the life of the process, and so does its name: one copy of each, however often it is loaded.
fn intern(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(&*name) {
        return known;
    }
    let name = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

/// Where the dynamic linker looks: a handle for dlsym(3).
pub(super) struct Scope(*mut c_void);

impl Scope {
    /// The global scope: the program, what it links and what was preloaded.
    pub(super) fn process() -> Self {
        Self(libc::RTLD_DEFAULT)
    }

    /// # Safety
    /// The library's initialisers may run now, and its finalisers at exit.
    unsafe fn library(name: &OsStr) -> Result<Self, DlError> {
        use std::error::Error;
        // SAFETY: the caller vouches for the initialisers and finalisers; the handle is never closed.
        let library = unsafe {
            libloading::os::unix::Library::open(Some(name), libc::RTLD_NOW | libc::RTLD_LOCAL)
        };
        match library {
            Ok(library) => Ok(Self(library.into_raw())),
            Err(error) => Err(DlError(error.source().unwrap_or(&error).to_string())),
        }
    }

    /// The address that a program linked against libibverbs would be bound to for `symbol@version`: the first definition that
    /// has the version, or one from an object without versions (a preload).
    pub(super) fn find(
        &self,
        library: &str,
        symbol: &CStr,
        version: &CStr,
    ) -> Result<*mut c_void, LoadError> {
        let text = |text: &CStr| text.to_string_lossy().into_owned();
        let plain = self.plain(symbol);
        if let Ok(address) = plain
            && !defines_versions(address)
        {
            return Ok(address);
        }
        match (self.versioned(symbol, version), plain) {
            (Ok(address), _) => Ok(address),
            (Err(source), Ok(_)) => Err(LoadError::Version {
                library: library.into(),
                symbol: text(symbol),
                version: text(version),
                source,
            }),
            (Err(_), Err(source)) => Err(LoadError::Symbol {
                library: library.into(),
                symbol: text(symbol),
                version: text(version),
                source,
            }),
        }
    }

    fn plain(&self, symbol: &CStr) -> Result<*mut c_void, DlError> {
        // SAFETY: the handle is RTLD_DEFAULT or came from dlopen and was never closed; the name is a C string.
        lookup(|| unsafe { libc::dlsym(self.0, symbol.as_ptr()) })
    }

    #[cfg(target_env = "gnu")]
    fn versioned(&self, symbol: &CStr, version: &CStr) -> Result<*mut c_void, DlError> {
        // SAFETY: the handle is RTLD_DEFAULT or came from dlopen and was never closed; both names are C strings.
        lookup(|| unsafe { libc::dlvsym(self.0, symbol.as_ptr(), version.as_ptr()) })
    }

    /// Without dlvsym(3) the default version has to do; it is the one that libibverbs has had all along.
    #[cfg(not(target_env = "gnu"))]
    fn versioned(&self, symbol: &CStr, _version: &CStr) -> Result<*mut c_void, DlError> {
        self.plain(symbol)
    }
}

/// Runs a look-up and turns a null answer into the linker's message.
fn lookup(look: impl FnOnce() -> *mut c_void) -> Result<*mut c_void, DlError> {
    let address = look();
    if !address.is_null() {
        return Ok(address);
    }
    // SAFETY: dlerror takes nothing; it gives null or a C string that lives until this thread's next dl call.
    let text = unsafe {
        let message: *const c_char = libc::dlerror();
        (!message.is_null()).then(|| CStr::from_ptr(message).to_string_lossy().into_owned())
    };
    Err(DlError(
        text.unwrap_or_else(|| "the symbol's address is null".into()),
    ))
}

/// Whether the object that holds `address` defines symbol versions (its dynamic section has DT_VERDEF). A preloaded device
/// may need versions of others and define none; its symbols then stand in for every version.
#[cfg(target_env = "gnu")]
fn defines_versions(address: *mut c_void) -> bool {
    /// The public head of glibc's `struct link_map` (`link.h`).
    #[repr(C)]
    struct LinkMap {
        l_addr: usize,
        l_name: *const c_char,
        l_ld: *const Dyn,
    }
    /// An entry of the dynamic section (`Elf64_Dyn`, or `Elf32_Dyn` on 32 bits).
    #[repr(C)]
    struct Dyn {
        tag: isize,
        value: usize,
    }
    const DT_NULL: isize = 0;
    const DT_VERDEF: isize = 0x6fff_fffc;
    const RTLD_DL_LINKMAP: core::ffi::c_int = 2;

    // SAFETY: all-zero is valid for four pointers.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    let mut map: *mut LinkMap = core::ptr::null_mut();
    // SAFETY: dladdr1 takes any address and writes the two out-parameters, of the types that RTLD_DL_LINKMAP asks for.
    let found =
        unsafe { libc::dladdr1(address, &mut info, (&raw mut map).cast(), RTLD_DL_LINKMAP) };
    if found == 0 || map.is_null() {
        return false;
    }
    // SAFETY: the map is that of a loaded object, which stays loaded while this thread uses a symbol of it (libibverbs is never
    // unloaded, a preload cannot be); its dynamic section is in memory and ends with DT_NULL.
    unsafe {
        let mut entry = (*map).l_ld;
        while !entry.is_null() && (*entry).tag != DT_NULL {
            if (*entry).tag == DT_VERDEF {
                return true;
            }
            entry = entry.add(1);
        }
    }
    false
}

/// Other C libraries know no symbol versions.
#[cfg(not(target_env = "gnu"))]
fn defines_versions(_address: *mut c_void) -> bool {
    false
}
