//! XRC domains.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use rdma_core_sys::{IBV_DEVICE_XRC, ibv_device_attr, ibv_device_cap_flags, ibv_xrcd};
use rustix::fs::OFlags;

use super::SrqNum;
use crate::device::Device;
use crate::errno::Errno;
use crate::qp::XrcTarget;
use crate::raw::last;
use crate::raw::xrc::{Contents, TargetHandle, XrcdHandle};

/// Whether the domain that a file names is to be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opening {
    /// It is, because a process of this node has it open.
    Existing,
    /// It is made if no process has it open (`O_CREAT`).
    Create,
    /// No process has it open, and it is made (`O_CREAT | O_EXCL`).
    CreateNew,
}

impl Opening {
    fn oflags(self) -> i32 {
        let flags = match self {
            Opening::Existing => OFlags::empty(),
            Opening::Create => OFlags::CREATE,
            Opening::CreateNew => OFlags::CREATE | OFlags::EXCL,
        };
        flags.bits() as i32
    }
}

/// An XRC domain could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenDomainError {
    /// The device has no XRC.
    #[error("{device} has no XRC (IBV_DEVICE_XRC is not among its capabilities)")]
    NoXrc {
        /// The device.
        device: String,
    },
    /// No process has the domain of the file open, and it was not to be made.
    #[error("no process has an XRC domain of {device} open by this file: use Opening::Create")]
    NotOpen {
        /// The device.
        device: String,
    },
    /// A process has the domain of the file open, and it was to be new.
    #[error(
        "a process has an XRC domain of {device} open by this file already: use Opening::Create"
    )]
    AlreadyOpen {
        /// The device.
        device: String,
    },
    /// The library refused.
    #[error("{device} did not open an XRC domain: {source}")]
    Refused {
        /// The device.
        device: String,
        /// What the library said.
        source: Errno,
    },
}

/// An XRC domain was not closed. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseDomainError {
    /// Something is left in it.
    #[error("the XRC domain is still used by {}", users(.targets, .srqs))]
    Busy {
        /// The domain.
        domain: XrcDomain,
        /// Numbers of targets.
        targets: Vec<u32>,
        /// Numbers of SRQs.
        srqs: Vec<SrqNum>,
    },
    /// The library refused.
    #[error("the XRC domain could not be closed: {source}")]
    Refused {
        /// The domain.
        domain: XrcDomain,
        /// What the library said.
        source: Errno,
    },
}

fn users(targets: &[u32], srqs: &[SrqNum]) -> String {
    let targets = targets.iter().map(|n| format!("target {n:#x}"));
    let all: Vec<String> = targets
        .chain(srqs.iter().map(|n| format!("SRQ {n}")))
        .collect();
    if all.is_empty() {
        return "another clone of it".to_owned();
    }
    all.join(", ")
}

/// A target could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} did not create an XRC target: {source}; is its number of QPs ({max}) used up?")]
pub struct CreateTargetError {
    /// The device.
    pub device: String,
    /// QPs that it can have.
    pub max: i32,
    /// What the library said.
    pub source: Errno,
}

/// A target could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device} did not open target {qp_num:#x}: {source}; does it stand in this domain, and has any process still a handle of it?"
)]
pub struct OpenTargetError {
    /// The device.
    pub device: String,
    /// The number that was asked for.
    pub qp_num: u32,
    /// What the library said.
    pub source: Errno,
}

/// An XRC domain: the targets of one reach its SRQs and no others.
///
/// The processes of a node share it, so that one target serves them all. They do by a file, whose content means nothing: the
/// kernel knows a domain by the device and the inode of its file (`ib_uverbs_open_xrcd`). Which file that is, and who opens
/// it first, is for the program. An anonymous domain is this process's alone.
///
/// On the software device a process is a node of its own, so its domain is shared by what opens it in that process: two
/// [`Device`]s opened of one name, two parts of a program.
///
/// ```
/// use rdma_qp::Device;
/// use rdma_qp::xrc::{CloseDomainError, Opening, XrcDomain};
/// # let path = std::env::temp_dir().join(format!("doc-domain-{}", std::process::id()));
/// # let file = std::fs::File::create(&path)?;
/// # std::fs::remove_file(&path)?;
/// let (one, two) = (Device::open_index(rdma_soft::verbs(), 0)?, Device::open_index(rdma_soft::verbs(), 0)?);
/// let first = XrcDomain::of_file(&one, &file, Opening::Create)?;
/// let second = XrcDomain::of_file(&two, &file, Opening::Existing)?;
/// // One and the same: what stands in it is found through both.
/// let target = first.create_target()?;
/// let opened = second.open_target(target.qp_num())?;
/// let Err(CloseDomainError::Busy { targets, .. }) = first.close() else { panic!() };
/// assert_eq!(targets, [opened.qp_num()]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What stands in it keeps it open, so it may be dropped at any time. Clones are handles of one and the same.
#[derive(Clone)]
pub struct XrcDomain {
    handle: Arc<XrcdHandle>,
    attr: Arc<ibv_device_attr>,
}

impl XrcDomain {
    /// Makes a domain that no other process can open.
    ///
    /// # Errors
    /// The device has no XRC, or the library refused.
    pub fn anonymous(device: &Device) -> Result<XrcDomain, OpenDomainError> {
        XrcDomain::open(device, None::<&std::fs::File>, Opening::Create)
    }

    /// Opens the domain that a file names.
    ///
    /// # Errors
    /// The domain is there although it was to be new, or is not although it was to be; the device has no XRC; or the library
    /// refused.
    pub fn of_file(
        device: &Device,
        file: impl AsFd,
        opening: Opening,
    ) -> Result<XrcDomain, OpenDomainError> {
        XrcDomain::open(device, Some(file), opening)
    }

    fn open(
        device: &Device,
        file: Option<impl AsFd>,
        opening: Opening,
    ) -> Result<XrcDomain, OpenDomainError> {
        let name = || device.name().to_owned();
        let cap = ibv_device_cap_flags::from_bits_retain(device.attr().device_cap_flags.into());
        if !cap.contains(IBV_DEVICE_XRC) {
            return Err(OpenDomainError::NoXrc { device: name() });
        }
        let fd = file.as_ref().map(AsFd::as_fd);
        // Which number means what: ib_uverbs_open_xrcd of the kernel (uverbs_cmd.c).
        let handle =
            XrcdHandle::open(device.context(), fd, opening.oflags()).map_err(|source| {
                match (opening, source) {
                    (Opening::Existing, source) if source.is_again() => {
                        OpenDomainError::NotOpen { device: name() }
                    }
                    (Opening::CreateNew, Errno::EINVAL) => {
                        OpenDomainError::AlreadyOpen { device: name() }
                    }
                    _ => OpenDomainError::Refused {
                        device: name(),
                        source,
                    },
                }
            })?;
        tracing::debug!(
            device = device.name(),
            ?opening,
            named = fd.is_some(),
            "XRC domain opened"
        );
        Ok(XrcDomain {
            handle: Arc::new(handle),
            attr: device.attr_handle().clone(),
        })
    }

    pub(crate) fn handle(&self) -> &Arc<XrcdHandle> {
        &self.handle
    }

    /// Name of the device that it is of.
    pub fn device(&self) -> &str {
        &self.handle.context.name
    }

    /// The verbs object, for calls that this library does not have. It is closed with the domain.
    pub fn as_ptr(&self) -> *mut ibv_xrcd {
        self.handle.as_ptr()
    }

    /// Makes a target in it, in RESET.
    ///
    /// # Errors
    /// The library refused.
    pub fn create_target(&self) -> Result<XrcTarget, CreateTargetError> {
        let handle = TargetHandle::create(&self.handle).map_err(|source| CreateTargetError {
            device: self.device().to_owned(),
            max: self.attr.max_qp,
            source,
        })?;
        tracing::debug!(
            device = self.device(),
            qp = handle.number(),
            "XRC target created"
        );
        Ok(XrcTarget::new(handle, &self.attr))
    }

    /// Opens the target of that number, which any process made in this domain. It then lives at least as long as what this
    /// gives.
    ///
    /// # Errors
    /// No target of that number stands in this domain, or its last handle is gone; or the library refused.
    pub fn open_target(&self, qp_num: u32) -> Result<XrcTarget, OpenTargetError> {
        let opened = TargetHandle::open(&self.handle, qp_num);
        let handle = opened.map_err(|source| OpenTargetError {
            device: self.device().to_owned(),
            qp_num,
            source,
        })?;
        Ok(XrcTarget::new(handle, &self.attr))
    }

    /// Closes the domain and says whether that worked. Dropping it instead closes it when the last of what was made in it is
    /// gone. The domain of a file ends when all processes have closed it.
    ///
    /// Where nothing is named, it waits for a second: another thread may be destroying the last of what stood in it.
    ///
    /// # Errors
    /// Something that was made or opened through this or a clone stands in it (the error says what), there are clones, or the
    /// library refused.
    pub fn close(self) -> Result<(), CloseDomainError> {
        let XrcDomain { handle, attr } = self;
        let mut left = Contents::default();
        let alone = last::owner(handle, |handle| {
            left = handle.contents();
            left.targets.is_empty() && left.srqs.is_empty()
        });
        match alone {
            Ok(mut handle) => handle.close().map_err(|source| {
                let handle = Arc::new(handle);
                let domain = XrcDomain { handle, attr };
                CloseDomainError::Refused { domain, source }
            }),
            Err(handle) => {
                let numbers = left.srqs.iter().map(|(number, _)| *number);
                Err(CloseDomainError::Busy {
                    srqs: numbers.filter_map(|n| SrqNum::new(n).ok()).collect(),
                    targets: left.targets,
                    domain: XrcDomain { handle, attr },
                })
            }
        }
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contents = self.handle.contents();
        write!(
            f,
            "XrcDomain({} targets and {} SRQs on {})",
            contents.targets.len(),
            contents.srqs.len(),
            self.device()
        )
    }
}
