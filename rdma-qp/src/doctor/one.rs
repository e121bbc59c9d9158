//! What the dump of one end says.

use std::time::Duration;

use super::{End, Finding, Weight, told_counter, told_errno, way};
use crate::dump::{DeviceDump, Failed, LastError};
use crate::lint;
use crate::rtt::Rtt;
use crate::units::{AckTimeout, RetryCount, Timing};

/// No acknowledgement came.
pub(super) const RETRY_EXC: u32 = 12;
/// The code of a modify that the rules allow and the provider refused.
pub(super) const PROVIDER_REFUSED: &str = "provider-refused";

/// Looks at one end; `peer` is its dump, where there is one.
pub(super) fn look(
    end: &End<'_>,
    peer: Option<&End<'_>>,
    rtt: Option<Rtt>,
    found: &mut Vec<Finding>,
) {
    way::port(end, found);
    modify(end, found);
    way::path(end, found);
    settings(end, peer, rtt, found);
    late_answers(end, peer, found);
    own_number(end, peer, found);
    repeated_for_ever(end, found);
    overtaken(end, found);
}

/// A modify that was not made.
fn modify(end: &End<'_>, found: &mut Vec<Finding>) {
    let Some(LastError {
        what:
            Failed::Modify {
                from,
                to,
                errno,
                called,
                problems,
            },
        text,
        ..
    }) = &end.last_error
    else {
        return;
    };
    // One that was mended since is history.
    let way = ["RESET", "INIT", "RTR", "RTS"];
    let place = |state: &str| way.iter().position(|step| *step == state);
    if let (Some(now), Some(wanted)) = (place(&end.qp.state), place(to))
        && now >= wanted
        && wanted > 0
    {
        return;
    }
    let step = match from {
        Some(from) => format!("{from} -> {to}"),
        None => format!("modify to {to}"),
    };
    let number = *errno;
    let before = format!(
        "before the call the QP was in {}",
        from.as_deref().unwrap_or("a state that it did not tell")
    );
    let errno = told_errno(number);
    if problems.is_empty() && crate::errno::Errno::from_raw(number).is_no_route() {
        found.push(
            end.finds("no-route", Weight::Certain, format!("{step} was refused: there is no route to the peer's GID, or no neighbour answers there"))
                .shown_by(errno)
                .shown_by(text.clone())
                .cured_by(cure_of("no-route", &step)),
        );
        return;
    }
    if problems.is_empty() {
        let (code, cause) = if *called {
            (
                PROVIDER_REFUSED,
                format!("{step} was refused by the provider, although the rules allow it"),
            )
        } else {
            ("modify-refused", format!("{step} was refused"))
        };
        found.push(
            end.finds(code, Weight::Certain, cause)
                .shown_by(before)
                .shown_by(errno)
                .shown_by(text.clone())
                .cured_by(cure_of(code, &step)),
        );
        return;
    }
    for problem in problems {
        // Told with the port.
        if way::is_of_gids(&problem.code) && way::has_no_gid(end) {
            continue;
        }
        found.push(
            end.finds(
                &problem.code[..],
                Weight::Certain,
                format!("{step} was refused: {}", problem.text),
            )
            .also(limit(&problem.text, &end.device))
            .shown_by(before.clone())
            .shown_by(errno.clone())
            .cured_by(cure_of(&problem.code, &step)),
        );
    }
}

/// The device's limit behind a value that is out of its range.
fn limit(text: &str, device: &DeviceDump) -> Option<String> {
    let limits = [
        (
            "max_rd_atomic is",
            "max_qp_init_rd_atom",
            device.max_qp_init_rd_atom,
        ),
        (
            "max_dest_rd_atomic is",
            "max_qp_rd_atom",
            device.max_qp_rd_atom,
        ),
    ];
    let (_, name, limit) = limits.iter().find(|(begin, ..)| text.starts_with(begin))?;
    Some(format!("{name} of the device is {limit}"))
}

/// What to do about a problem of a modify, beyond what its sentence says.
pub(super) fn cure_of(code: &str, step: &str) -> String {
    match code {
        "no-route" => "`qp doctor path --remote GID` says which local entry can reach the peer; see that the peer's address is up".to_owned(),
        PROVIDER_REFUSED | "modify-refused" => "no attribute is missing, not allowed or out of range, so the caller is right by the rules: \
                          look into the kernel log, try the same on another device, and report it to the maker of the driver"
            .to_owned(),
        "mask" => format!(
            "pass ibv_modify_qp exactly the attributes of {step}: the missing ones added, those not allowed left out; \
             `qp states` lists them"
        ),
        "no-transition" => "go to a state that can be reached from here; from ERR only RESET leads on".to_owned(),
        "grh-missing" => "set ah_attr.is_global to 1, ah_attr.grh.dgid to the peer's GID and sgid_index to an own one: \
                          Ethernet has no LIDs"
            .to_owned(),
        "mtu-over-port" => "take the smaller of both ends' active_mtu (ibv_query_port) as path_mtu".to_owned(),
        "port-differs" => "name one port everywhere: in INIT, in the address vector, and where GIDs are queried".to_owned(),
        "qkey-privileged" => "take a Q_Key below 0x80000000".to_owned(),
        "gid-empty" | "gid-roce-v1" | "gid-family" => {
            "set sgid_index to the entry that `qp devices` marks as chosen; do not count on a fixed index".to_owned()
        }
        "dgid-zero" => "fill in the GID that the peer sent: it queried an empty slot, or an index that is none of its port".to_owned(),
        "pkey-empty" => "set pkey_index to a filled place (ibv_query_pkey); on RoCE that is 0".to_owned(),
        "draining" => "wait for IBV_EVENT_SQ_DRAINED, or until sq_draining is 0".to_owned(),
        "cur-state" => "leave IBV_QP_CUR_STATE out, or set it to the real state".to_owned(),
        _ => "set it to a value in that range".to_owned(),
    }
}

/// What the lint says; what has already happened by it weighs more.
fn settings(end: &End<'_>, peer: Option<&End<'_>>, rtt: Option<Rtt>, found: &mut Vec<Finding>) {
    let failed = end.failed();
    for finding in lint::check(&end.settings(rtt)) {
        let likely = |explains: bool| {
            if explains {
                Weight::Likely
            } else {
                Weight::Risk
            }
        };
        let (weight, also) = match &finding {
            // Looked at with both addresses.
            lint::Finding::HopLimit { .. } => continue,
            lint::Finding::PortDown { .. } => (Weight::Certain, None),
            lint::Finding::TimeoutShort { .. } => (likely(failed == Some(RETRY_EXC)), None),
            lint::Finding::RetryCntZero => (likely(failed == Some(RETRY_EXC)), None),
            lint::Finding::MtuOverInterface { .. } => (likely(failed.is_some()), None),
            lint::Finding::RnrTimerLongest => {
                let naks = end.counted(&[
                    "qp/rnr_naks_sent",
                    "hw_counters/out_of_buffer",
                    "soft/tx_rnr_naks",
                ]);
                let weight = if naks.is_some() {
                    Weight::Certain
                } else {
                    Weight::Risk
                };
                let waited = peer.and_then(|peer| peer.counted(&["qp/rnr_wait_ms"]));
                let waited = waited.map(|(_, ms)| format!("the peer waited {ms} ms in all"));
                (
                    weight,
                    [naks.map(told_counter), waited]
                        .into_iter()
                        .flatten()
                        .reduce(|a, b| format!("{a}; {b}")),
                )
            }
            _ => (Weight::Risk, None),
        };
        found.push(
            end.finds(
                finding.code(),
                weight,
                finding.to_string().split(": ").next().unwrap_or_default(),
            )
            .shown_by(finding.consequence())
            .also(also)
            .also(
                failed
                    .filter(|_| weight == Weight::Likely)
                    .map(|status| format!("a request failed: {}", super::status::name(status))),
            )
            .cured_by(finding.advice()),
        );
    }
}

/// Answers that came, but too late: the timeout is shorter than the round trip, whatever that is.
fn late_answers(end: &End<'_>, peer: Option<&End<'_>>, found: &mut Vec<Finding>) {
    let Some(timeout) = end
        .qp
        .attributes
        .timeout
        .and_then(|code| AckTimeout::from_code(code).ok())
    else {
        return;
    };
    if end.failed() != Some(RETRY_EXC)
        || found
            .iter()
            .any(|f| f.code == "timeout-short" && f.end == Some(end.name()))
    {
        return;
    }
    let asked_again = peer.and_then(|peer| {
        peer.counted(&["soft/rx_duplicate_request", "hw_counters/duplicate_request"])
    });
    let late = end.counted(&["soft/rx_ghost_response", "soft/rx_duplicate_response"]);
    let (Some(_), usual) = (
        asked_again.as_ref().or(late.as_ref()),
        Timing::default().timeout,
    ) else {
        return;
    };
    if timeout
        .interval()
        .is_none_or(|interval| interval > Duration::from_millis(100))
    {
        return;
    }
    let count = end
        .qp
        .attributes
        .retry_cnt
        .and_then(|count| RetryCount::new(count).ok());
    let budget = count.and_then(|retry_cnt| {
        Timing {
            timeout,
            retry_cnt,
            ..Timing::default()
        }
        .budget()
    });
    found.push(
        end.finds("timeout-short", Weight::Likely, "the timeout is too short for the path: the peer got the requests, and its answers came too late")
            .shown_by(format!("timeout is {timeout}"))
            .also(budget.map(|budget| format!("all repetitions are over after {budget:?}")))
            .also(asked_again.map(|c| format!("at the peer {}", told_counter(c))))
            .also(late.map(|c| format!("here {}", told_counter(c))))
            .cured_by(format!("set timeout to {usual} at RTR -> RTS, or derive it from the round trip (4.096 us x 2^timeout, at least four round trips)")),
    );
}

/// soft-RoCE never counts a retry_cnt of 7 down (`rxe_completer` of the kernel's rxe_comp.c): where nobody answers, it repeats for
/// ever, and no request fails.
fn repeated_for_ever(end: &End<'_>, found: &mut Vec<Finding>) {
    let waiting = end.accounts.as_ref().map_or(0, |books| books.send.pending);
    let repeated = end.counted(&["hw_counters/completer_retry_err"]);
    let (true, Some(7), Some(repeated)) = (
        end.is_rxe() && waiting > 0,
        end.qp.attributes.retry_cnt,
        repeated,
    ) else {
        return;
    };
    found.push(
        end.finds("repeats-for-ever", Weight::Likely, "nobody answers, and soft-RoCE (rxe) repeats for ever: to it a retry_cnt of 7 is without limit")
            .shown_by(format!("retry_cnt is 7; {waiting} sends wait for their end"))
            .shown_by(told_counter(repeated))
            .cured_by(
                "set retry_cnt to 6 or less at RTR -> RTS, and the request fails with a status that can be looked up; rxe of Linux 5.10 \
                 also drops what it refuses without an answer (a wrong rkey, a missing right), so look at keys and rights, too",
            ),
    );
}

/// Requests that should have been fenced. The device counts them, of all its Queue Pairs together.
fn overtaken(end: &End<'_>, found: &mut Vec<Finding>) {
    let Some(counted) = end.counted(&["soft/tx_unfenced_hazards"]) else {
        return;
    };
    found.push(Finding {
        end: Some(end.device.name.clone()),
        ..end
            .finds(
                "fence-missing",
                Weight::Risk,
                "a request may overtake an earlier READ or atomic that reads where it writes, or fills what it sends",
            )
            .shown_by(told_counter(counted))
            .cured_by(
                "put IBV_SEND_FENCE on the later request, not on the READ, or wait for the READ's completion before it is posted",
            )
    });
}

/// It sends to itself, which is legal, and mostly the own number in place of the peer's.
fn own_number(end: &End<'_>, peer: Option<&End<'_>>, found: &mut Vec<Finding>) {
    let own = end.qp.number;
    let to_itself = end.qp.attributes.dest_qp_num == Some(own)
        && end.dgid().is_some_and(|gid| end.has_gid(gid));
    if peer.is_some() || end.failed() != Some(RETRY_EXC) || !to_itself {
        return;
    }
    found.push(
        end.finds(
            "qpn-differs",
            Weight::Likely,
            "it sends to its own QP number",
        )
        .shown_by(format!("dest_qp_num is {own:#x}, which is its own"))
        .shown_by(format!(
            "a request failed: {}",
            super::status::name(RETRY_EXC)
        ))
        .cured_by("set dest_qp_num at INIT -> RTR to the qp_num that the other end sent"),
    );
}
