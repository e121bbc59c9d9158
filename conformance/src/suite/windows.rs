//! Memory windows of both types.

use std::rc::Rc;

use libc::{EBUSY, EINVAL, EPERM};
use rdma_core_sys::rules::Transport::Rc as RC;
use rdma_core_sys::*;

use super::{Arm, Check, Done, Outcome, Pair, Setting, Trouble, expect, next, refused};
use crate::bytes::{pattern, same};
use crate::device::{Bind, Buffer, Pd, Send, Window};

pub(super) fn checks() -> Vec<Check> {
    let rule = |name: &str, body: fn(&Arm) -> Outcome| Check::rule(format!("windows/{name}"), body);
    vec![
        rule("type-2/opens-what-it-is-bound-to", opens),
        rule("type-2/no-more-than-it-allows", no_more_rights),
        rule("type-2/no-byte-beyond", beyond),
        rule("type-2/not-by-another-qp", other_qp),
        rule("type-2/not-by-its-key-before", old_key),
        rule("type-2/closed-by-local-invalidate", closed_locally),
        rule("type-2/closed-by-the-peer's-message", closed_by_peer),
        rule("type-2/not-bound-twice", bound_twice),
        rule("type-2/not-beyond-the-region", bind_beyond),
        rule(
            "type-2/not-over-a-region-of-another-domain",
            bind_other_domain,
        ),
        rule("type-2/keeps-its-region", keeps_region),
        rule("type-1/opens-what-it-is-bound-to", type_1_opens),
        rule("type-1/bound-anew-with-another-key", type_1_anew),
        rule("type-1/keeps-its-region", type_1_keeps_region),
        rule("type-1/bind-of-a-type-2-window", type_1_bind_of_type_2),
        rule("type-1/bind-over-another-domain", type_1_other_domain),
    ]
}

/// A pair, with a region of the answering end and a window that is bound to a part of it.
struct Scene {
    /// In front of what it stands on: the kernel's rxe waits for ever where a QP is destroyed that a window of type 2 is
    /// bound by (`rxe_mw.c`, `rxe_do_bind_mw` takes a reference), and a region cannot go before its windows.
    window: Rc<Window>,
    region: Rc<Buffer>,
    pair: Pair,
    /// The key that opens the window.
    rkey: u32,
}

/// The part of the region that the window opens.
const PART: (usize, usize) = (1000, 500);

impl Scene {
    fn new(arm: &Arm, mw_type: ibv_mw_type, access: ibv_access_flags) -> Result<Scene, Trouble> {
        let pair = arm.fresh(Setting::new(RC, arm.mtu()))?;
        let pd = &pair.b.side.pd;
        // No right for peers but through a window.
        let region = Buffer::with_access(pd, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)?;
        let window = Window::new(pd, mw_type)?;
        let mut scene = Scene {
            window,
            region,
            pair,
            rkey: 0,
        };
        match mw_type {
            IBV_MW_TYPE_1 => {
                scene.bind_type_1(access)?;
            }
            _ => {
                scene.rkey = ops::ibv_inc_rkey(scene.window.rkey());
                let status = scene.bind(&scene.binding(access))?;
                expect("the status of the bind", status, IBV_WC_SUCCESS)?;
            }
        }
        Ok(scene)
    }

    fn binding(&self, access: ibv_access_flags) -> Bind {
        Bind {
            window: Rc::clone(&self.window),
            rkey: self.rkey,
            buffer: Rc::clone(&self.region),
            offset: PART.0,
            len: PART.1 as u64,
            access,
        }
    }

    /// Posts a bind at the answering end; gives its status.
    fn bind(&self, bind: &Bind) -> Result<ibv_wc_status, Trouble> {
        self.pair.b.qp.post_send(&Send {
            opcode: IBV_WR_BIND_MW,
            flags: IBV_SEND_SIGNALED,
            bind: Some(bind.clone()),
            ..Send::default()
        })?;
        Ok(next(&self.pair.b.sends, "the bind")?.status)
    }

    fn bind_type_1(&mut self, access: ibv_access_flags) -> Result<(), Trouble> {
        let bind = self.binding(access);
        self.pair.b.qp.bind(77, IBV_SEND_SIGNALED, &bind)?;
        let wc = next(&self.pair.b.sends, "the bind")?;
        expect("the status of the bind", wc.status, IBV_WC_SUCCESS)?;
        expect("the opcode of the bind", wc.opcode, IBV_WC_BIND_MW)?;
        expect("the wr_id of the bind", wc.wr_id, 77)?;
        self.rkey = self.window.rkey();
        Ok(())
    }

    /// A request of the asking end through the window.
    fn request(&self, opcode: ibv_wr_opcode, at: usize, len: usize) -> Send {
        Send {
            remote: (self.region.address(PART.0 + at), self.rkey),
            ..self.pair.request(opcode, len)
        }
    }

    /// Writes through the window and looks at the region.
    fn writes(&self) -> Result<(), Trouble> {
        let data = pattern(9, PART.1);
        self.pair.a.side.buffer.write(super::SOURCE, &data);
        let request = self.request(IBV_WR_RDMA_WRITE, 0, PART.1);
        self.pair.ends_with(request, IBV_WC_SUCCESS)?;
        same(&self.region.read(PART.0, PART.1), &data)?;
        Ok(())
    }

    fn is_denied(&self, send: Send) -> Outcome {
        self.pair.ends_with(send, IBV_WC_REM_ACCESS_ERR)?;
        Ok(Done::Passed)
    }

    /// Invalidates the window at the answering end; gives the status.
    fn invalidate(&self, flags: ibv_send_flags) -> Result<(), Trouble> {
        Ok(self.pair.b.qp.post_send(&Send {
            opcode: IBV_WR_LOCAL_INV,
            flags,
            invalidate: self.rkey,
            ..Send::default()
        })?)
    }
}

fn type_2(arm: &Arm) -> Result<Scene, Trouble> {
    Scene::new(arm, IBV_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE)
}

fn opens(arm: &Arm) -> Outcome {
    let rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    let scene = Scene::new(arm, IBV_MW_TYPE_2, rights)?;
    scene.writes()?;
    let read = scene.request(IBV_WR_RDMA_READ, 10, 100);
    scene.pair.ends_with(read, IBV_WC_SUCCESS)?;
    let found = scene.pair.a.side.buffer.read(super::SOURCE, 100);
    same(&found, &pattern(9, PART.1)[10..110])?;
    let add = scene.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8);
    scene.pair.ends_with(add, IBV_WC_SUCCESS)?;
    Ok(Done::Passed)
}

fn no_more_rights(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    scene.is_denied(scene.request(IBV_WR_RDMA_READ, 0, 8))
}

fn beyond(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    scene.is_denied(scene.request(IBV_WR_RDMA_WRITE, PART.1 - 7, 8))
}

/// A window of type 2 belongs to the QP that bound it.
fn other_qp(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    let other = arm.fresh(Setting::new(RC, arm.mtu()))?;
    let send = scene.request(IBV_WR_RDMA_WRITE, 0, 8);
    other.ends_with(send, IBV_WC_REM_ACCESS_ERR)?;
    scene.writes()?;
    Ok(Done::Passed)
}

fn old_key(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    let mut send = scene.request(IBV_WR_RDMA_WRITE, 0, 8);
    send.remote.1 = scene.rkey & !0xff | scene.rkey.wrapping_sub(1) & 0xff;
    scene.is_denied(send)
}

fn closed_locally(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    scene.writes()?;
    scene.invalidate(IBV_SEND_SIGNALED)?;
    let wc = next(&scene.pair.b.sends, "the local invalidate")?;
    expect("its status", wc.status, IBV_WC_SUCCESS)?;
    expect("its opcode", wc.opcode, IBV_WC_LOCAL_INV)?;
    scene.is_denied(scene.request(IBV_WR_RDMA_WRITE, 0, 8))
}

fn closed_by_peer(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    scene.writes()?;
    scene.pair.make_room(3, 8)?;
    let mut send = scene.pair.request(IBV_WR_SEND_WITH_INV, 8);
    send.invalidate = scene.rkey;
    scene.pair.ends_with(send, IBV_WC_SUCCESS)?;
    let wc = scene.pair.received()?;
    expect(
        "the key that ended",
        wc.invalidated_rkey(),
        Some(scene.rkey),
    )?;
    scene.is_denied(scene.request(IBV_WR_RDMA_WRITE, 0, 8))
}

fn bound_twice(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    let mut bind = scene.binding(IBV_ACCESS_REMOTE_WRITE);
    bind.rkey = ops::ibv_inc_rkey(scene.rkey);
    expect("the status", scene.bind(&bind)?, IBV_WC_MW_BIND_ERR)?;
    Ok(Done::Passed)
}

/// A bind of a free window that must fail; some providers see it during the post.
fn not_bound(arm: &Arm, change: impl Fn(&mut Bind) -> Result<(), Trouble>) -> Outcome {
    let scene = type_2(arm)?;
    let window = Window::new(&scene.pair.b.side.pd, IBV_MW_TYPE_2)?;
    let mut bind = Bind {
        rkey: ops::ibv_inc_rkey(window.rkey()),
        window,
        ..scene.binding(IBV_ACCESS_REMOTE_WRITE)
    };
    change(&mut bind)?;
    let posted = scene.pair.b.qp.post_send(&Send {
        opcode: IBV_WR_BIND_MW,
        flags: IBV_SEND_SIGNALED,
        bind: Some(bind),
        ..Send::default()
    });
    match posted {
        Err(failed) if [EINVAL, EPERM].contains(&failed.errno) => Ok(Done::Refused),
        other => {
            other?;
            let wc = next(&scene.pair.b.sends, "the bind")?;
            expect("the status", wc.status, IBV_WC_MW_BIND_ERR)?;
            Ok(Done::Passed)
        }
    }
}

fn bind_beyond(arm: &Arm) -> Outcome {
    not_bound(arm, |bind| {
        bind.len = 4096;
        Ok(())
    })
}

fn bind_other_domain(arm: &Arm) -> Outcome {
    not_bound(arm, |bind| {
        let pd = Pd::new(&arm.sides[1].device)?;
        bind.buffer = Buffer::with_access(&pd, 4096, Buffer::ALL)?;
        Ok(())
    })
}

/// While a window is bound to it, and until the completion of its invalidation was seen.
fn keeps_region(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    refused(
        "deregistration under a window",
        scene.region.deregister(),
        &[EBUSY, EINVAL],
    )?;
    scene.writes()?;
    scene.invalidate(IBV_SEND_SIGNALED)?;
    next(&scene.pair.b.sends, "the local invalidate")?;
    scene.region.deregister()?;
    Ok(Done::Refused)
}

fn type_1(arm: &Arm) -> Result<Scene, Trouble> {
    Scene::new(arm, IBV_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE)
}

fn type_1_opens(arm: &Arm) -> Outcome {
    let scene = type_1(arm)?;
    scene.writes()?;
    scene.is_denied(scene.request(IBV_WR_RDMA_READ, 0, 8))
}

fn type_1_anew(arm: &Arm) -> Outcome {
    let mut scene = type_1(arm)?;
    let before = scene.rkey;
    scene.bind_type_1(IBV_ACCESS_REMOTE_WRITE)?;
    expect("a new key", scene.rkey != before, true)?;
    scene.writes()?;
    let mut send = scene.request(IBV_WR_RDMA_WRITE, 0, 8);
    send.remote.1 = before;
    scene.is_denied(send)
}

fn type_1_keeps_region(arm: &Arm) -> Outcome {
    let scene = type_1(arm)?;
    refused(
        "deregistration under a window",
        scene.region.deregister(),
        &[EBUSY, EINVAL],
    )?;
    let Scene { region, window, .. } = scene;
    drop(window);
    region.deregister()?;
    Ok(Done::Refused)
}

fn type_1_bind_of_type_2(arm: &Arm) -> Outcome {
    let scene = type_2(arm)?;
    let bind = scene.binding(IBV_ACCESS_REMOTE_WRITE);
    let bound = scene.pair.b.qp.bind(1, IBV_SEND_SIGNALED, &bind);
    refused("ibv_bind_mw of a type 2 window", bound, &[EINVAL])
}

fn type_1_other_domain(arm: &Arm) -> Outcome {
    let scene = type_1(arm)?;
    let pd = Pd::new(&arm.sides[1].device)?;
    let mut bind = scene.binding(IBV_ACCESS_REMOTE_WRITE);
    bind.buffer = Buffer::with_access(&pd, 4096, Buffer::ALL)?;
    let bound = scene.pair.b.qp.bind(1, IBV_SEND_SIGNALED, &bind);
    refused("ibv_bind_mw over another domain", bound, &[EPERM])
}
