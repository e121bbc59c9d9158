//! How two ends of a connection come together by datagrams that may be lost, doubled or late.
//!
//! Both ends send the same kind of message: who I am (the endpoint record, and which *life* of this end it is of), and which
//! life of yours I am ready to receive from. An end that hears of the other for the first time goes to RTR; an end that hears
//! that the other is ready for it goes to RTS, and is up. Whoever is not up asks again until it is; whoever is asked answers.
//! A target sends nothing, so it is up when it is in RTR.

use std::time::{Duration, Instant};

use rdma_qp::xrc::{XrcSend, XrcTarget};
use rdma_qp::{ConnectError, Endpoint, EndpointError, GidEntry, Negotiated, Peer, Qp, Rc, Timing};

use super::note::{Body, Role};

/// What connects.
pub(super) trait End {
    /// What kind of end it is.
    const ROLE: Role;
    fn describe(&mut self, gid: GidEntry) -> Result<Endpoint, EndpointError>;
    fn to_rtr(&mut self, there: &Peer, timing: Timing) -> Result<Negotiated, ConnectError>;
    fn to_rts(&mut self, agreed: Negotiated, timing: Timing) -> Result<(), ConnectError>;
}

macro_rules! ends {
    ($($end:ty: $role:expr),+) => {$(
        impl End for $end {
            const ROLE: Role = $role;
            fn describe(&mut self, gid: GidEntry) -> Result<Endpoint, EndpointError> {
                self.endpoint(gid)
            }
            fn to_rtr(&mut self, there: &Peer, timing: Timing) -> Result<Negotiated, ConnectError> {
                self.connect_begin(there, timing)
            }
            fn to_rts(&mut self, agreed: Negotiated, timing: Timing) -> Result<(), ConnectError> {
                self.connect_finish(agreed, timing).map(drop)
            }
        }
    )+};
}

ends!(Qp<Rc>: Role::Rc, Qp<XrcSend>: Role::Initiator, XrcTarget: Role::Target);

/// Time until a hello is sent again, at first; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// And at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What one end knows of the other.
pub(super) struct Handshake {
    role: Role,
    life: u32,
    mine: Endpoint,
    /// The life of the other end that this one is ready for, and what both agreed on.
    theirs: Option<(u32, Negotiated)>,
    up: bool,
    /// When to ask again.
    next: Instant,
    pause: Duration,
}

/// What a hello was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It changed nothing, or brought this end forward.
    Fine,
    /// It is from a later life of the other end: this one must be made anew.
    Reborn,
    /// It is from a former life of the other end: it came late.
    Late,
}

impl Handshake {
    /// Begins with a fresh end.
    pub(super) fn new<E: End>(
        end: &mut E,
        gid: GidEntry,
        life: u32,
        now: Instant,
    ) -> Result<Handshake, EndpointError> {
        Ok(Handshake {
            role: E::ROLE,
            life,
            mine: end.describe(gid)?,
            theirs: None,
            up: false,
            next: now,
            pause: FIRST_PAUSE,
        })
    }

    /// Whether this end may send.
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// What to tell the other end.
    pub(super) fn hello(&self) -> Body {
        self.hello_as(self.role)
    }

    /// The same, from an end of that kind.
    pub(super) fn hello_as(&self, role: Role) -> Body {
        Body::Hello {
            role,
            life: self.life,
            ready_for: self.theirs.map_or(0, |(life, _)| life),
            endpoint: self.mine.clone(),
        }
    }

    /// Whether it is time to ask the other end. If so, the next time is later.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.up || now < self.next {
            return false;
        }
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }

    /// When to ask next.
    pub(super) fn next(&self) -> Option<Instant> {
        (!self.up).then_some(self.next)
    }

    /// Takes in what the other end says.
    pub(super) fn hear<E: End>(
        &mut self,
        end: &mut E,
        (life, ready_for, endpoint): (u32, u32, Endpoint),
        timing: Timing,
    ) -> Result<Heard, ConnectError> {
        // A target answers when it is ready for this initiator; otherwise it was for a former one.
        if self.role == Role::Initiator && ready_for != self.life {
            return Ok(Heard::Late);
        }
        match self.theirs {
            Some((known, _)) if life > known => return Ok(Heard::Reborn),
            Some((known, _)) if life < known => return Ok(Heard::Late),
            Some(_) => {}
            None => {
                let regions = Vec::new();
                let agreed = end.to_rtr(&Peer { endpoint, regions }, timing)?;
                self.theirs = Some((life, agreed));
            }
        }
        let is_expected = ready_for == self.life || self.role == Role::Target;
        if let Some((_, agreed)) = self.theirs
            && is_expected
            && !self.up
        {
            end.to_rts(agreed, timing)?;
            self.up = true;
        }
        Ok(Heard::Fine)
    }
}
