//! What a program or a log says about a failure, and what may lie behind it.

use rdma_core_sys::rules::{self, Bits, Transport};
use rdma_core_sys::{
    IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, ibv_qp_state, ibv_wc_status,
};

use super::one::{self, PROVIDER_REFUSED};
use super::{End, Finding, Weight, status, told_errno};
use crate::errno::Errno;

/// What a line of a log tells: the status of a completion, an errno, a step of a Queue Pair. Made by [`Told::parse`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// The status of a completion, as a number of `ibv_wc_status`.
    pub status: Option<u32>,
    /// An errno.
    pub errno: Option<i32>,
    /// A modify: from which state to which.
    pub step: Option<(ibv_qp_state, ibv_qp_state)>,
    /// A Queue Pair was modified, whether or not it is said from which state to which.
    pub modify: bool,
    /// Something was posted.
    pub post: bool,
    /// Requests before the one that failed had succeeded, as a report of this library says.
    pub worked: bool,
    /// What the request was that failed, as a report of this library says: `RDMA READ`.
    pub operation: Option<String>,
    /// What a report of this library says is wrong with a modify: the code, as in a dump, and the words.
    pub problems: Vec<(&'static str, String)>,
}

/// Words by which a [`Problem`](crate::Problem) in a report of this library is known, in lower case, and its code.
const PROBLEM_WORDS: &[(&str, &str)] = &[
    ("not a transition", "no-transition"),
    ("missing ibv_qp_", "mask"),
    ("not allowed ibv_qp_", "mask"),
    ("roce needs 1 and a grh", "grh-missing"),
    ("bytes: the port", "mtu-over-port"),
    ("the qp is on port", "port-differs"),
    ("for privileged programs", "qkey-privileged"),
    ("is an empty slot of the gid table", "gid-empty"),
    ("of type roce v1", "gid-roce-v1"),
    ("dgid is all zero", "dgid-zero"),
    ("but dgid is", "gid-family"),
    ("is an empty slot of the p_key table", "pkey-empty"),
    ("the send queue still drains", "draining"),
    ("cur_qp_state is", "cur-state"),
    (": must be ", "value"),
    ("no route to, or no neighbour", "no-route"),
];

/// What `ibv_wc_status_str` of libibverbs says, in lower case, and what others make of it.
const STATUS_WORDS: &[(&str, u32)] = &[
    ("rnr retry count", 13),
    ("retry count", 12),
    ("retry exceeded", 12),
    ("remote access error", 10),
    ("remote invalid request", 9),
    ("remote operation error", 11),
    ("local length error", 1),
    ("local qp operation error", 2),
    ("local protection error", 4),
    ("work request flushed", 5),
    ("memory bind error", 6),
    ("memory management operation error", 6),
    ("bad response error", 7),
    ("local access error", 8),
];

/// What strerror(3) says, in lower case.
const ERRNO_WORDS: &[(&str, i32)] = &[
    ("invalid argument", 22),
    ("cannot allocate memory", 12),
    ("connection timed out", 110),
    ("network is unreachable", 101),
    ("no route to host", 113),
    ("operation not permitted", 1),
    ("permission denied", 13),
    ("no such device", 19),
    ("resource busy", 16),
    ("function not implemented", 38),
    ("operation not supported", 95),
];

impl Told {
    /// What the text tells: the line of a log, or several. `None` if nothing in it is known.
    ///
    /// ```
    /// use rdma_qp::doctor::Told;
    /// let told = Told::parse("Failed status transport retry counter exceeded (12) for wr_id 2").unwrap();
    /// assert_eq!(told.status, Some(12));
    /// let told = Told::parse("ibv_modify_qp to RTR failed: 22").unwrap();
    /// assert_eq!(told.errno, Some(22));
    /// assert_eq!(Told::parse("all is well"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Told> {
        let lower = text.to_lowercase();
        let word = |words: &[(&str, u32)]| {
            words
                .iter()
                .find(|(word, _)| lower.contains(word))
                .map(|(_, n)| *n)
        };
        let named = (0..=23).find(|n| {
            let name = ibv_wc_status(*n).name();
            *n != 0 && name.is_some_and(|name| text.contains(name))
        });
        let counted = ["status", "error", "syndrome"].iter().find_map(|word| {
            let number = number_after(&lower, word)?;
            (1..=23).contains(&number).then_some(number)
        });
        let (refused, own) = (" refused ", "nothing was changed");
        let own = lower.contains(refused) && lower.contains(own);
        let modifies =
            own || lower.contains("modify") || lower.contains("rtr") || lower.contains("rts");
        let errno_named = text
            .split(|c: char| !c.is_ascii_alphanumeric())
            .find_map(|word| (1..=133).find(|n| Errno::from_raw(*n).name() == Some(word)));
        let errno_word = ERRNO_WORDS
            .iter()
            .find(|(word, _)| lower.contains(word))
            .map(|(_, n)| *n);
        // A number alone may be either; what strerror(3) says beside it tells.
        let either = modifies || errno_named.is_some() || errno_word.is_some();
        let status = named
            .or_else(|| word(STATUS_WORDS))
            .or(counted.filter(|_| !either));
        let errno_counted = || {
            let word = [
                "errno",
                "failed:",
                "failed with",
                "returned",
                "status",
                "error",
                "ret",
                "err",
            ];
            let number = word.iter().find_map(|word| number_after(&lower, word))?;
            i32::try_from(number).ok().filter(|n| (1..=133).contains(n))
        };
        let errno = errno_named.or(errno_word).or_else(|| {
            if status.is_none() {
                errno_counted()
            } else {
                None
            }
        });
        let to = |state: &str| {
            let before = ["to ", "-> ", "->", "ibv_qps_", "_"];
            modifies
                && before
                    .iter()
                    .any(|b| lower.contains(&format!("{b}{state}")))
        };
        let step = if to("rts") {
            Some((IBV_QPS_RTR, IBV_QPS_RTS))
        } else if to("rtr") {
            Some((IBV_QPS_INIT, IBV_QPS_RTR))
        } else if modifies && to("init") {
            Some((IBV_QPS_RESET, IBV_QPS_INIT))
        } else {
            None
        };
        let told = Told {
            status,
            errno,
            step,
            modify: step.is_some() || lower.contains("modify"),
            post: lower.contains("post_send") || lower.contains("post_recv"),
            worked: succeeded_before(&lower),
            operation: (text.split_once(" failed on "))
                .map(|(operation, _)| operation.lines().next_back().unwrap_or_default().to_owned()),
            problems: if own { problems(text) } else { Vec::new() },
        };
        let known = told.status.is_some() || told.errno.is_some() || !told.problems.is_empty();
        known.then_some(told)
    }
}

/// Whether a report says that requests of the queue succeeded before: `3 of 8 requests of this queue succeeded before`.
fn succeeded_before(lower: &str) -> bool {
    let Some((before, _)) = lower.split_once(" requests of this queue succeeded before") else {
        return false;
    };
    let counted = before
        .rsplit_once(" of ")
        .and_then(|(before, _)| before.rsplit(' ').next());
    counted.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 0))
}

/// What a report of a modify says is wrong: its clauses behind the name of the Queue Pair, as far as they are known.
fn problems(report: &str) -> Vec<(&'static str, String)> {
    let mut found: Vec<(&'static str, String)> = Vec::new();
    let body = report
        .split(". Nothing was changed")
        .next()
        .unwrap_or(report);
    let body = body.split_once(" QP 0x").map_or(body, |(_, rest)| rest);
    let body = body.split_once(": ").map_or(body, |(_, rest)| rest);
    for clause in body.split("; ") {
        // One colon may stand before what begins the clause, so that a range is found.
        let lower = clause.to_lowercase();
        let code = PROBLEM_WORDS
            .iter()
            .find(|(word, _)| lower.contains(word))
            .map(|(_, code)| *code);
        if let Some(code) = code
            && found.iter().all(|(known, _)| *known != code)
        {
            found.push((code, clause.trim().to_owned()));
        }
    }
    if found.is_empty() && report.contains("refused by the provider") {
        found.push((PROVIDER_REFUSED, "although the rules allow it".to_owned()));
    }
    found
}

/// The number behind a word, with `:`, `=`, brackets and blanks between them; decimal or 0x.
fn number_after(text: &str, word: &str) -> Option<u32> {
    text.match_indices(word).find_map(|(at, _)| {
        // `os error` is how Rust prints an errno.
        if word == "error" && text[..at].ends_with("os ") {
            return None;
        }
        let rest =
            text[at + word.len()..].trim_start_matches([' ', ':', '=', '(', '[', '#', '\'', '"']);
        let (digits, radix) = match rest.strip_prefix("0x") {
            Some(hex) => (hex, 16),
            None => (rest, 10),
        };
        let end = digits
            .find(|c: char| !c.is_digit(radix))
            .unwrap_or(digits.len());
        u32::from_str_radix(&digits[..end], radix).ok()
    })
}

/// What a report of this library says, as a finding.
fn said(code: &str, words: &str, step: Option<(ibv_qp_state, ibv_qp_state)>) -> Finding {
    let step = step.map_or("the modify".to_owned(), |(from, to)| {
        format!("{from} -> {to}")
    });
    Finding {
        code: code.to_owned(),
        weight: Weight::Likely,
        end: None,
        cause: match code {
            "no-route" => {
                "there is no route to the peer's GID, or no neighbour answers there".to_owned()
            }
            PROVIDER_REFUSED => format!("{step} was refused by the provider, {words}"),
            _ => format!("{step} was refused: {words}"),
        },
        evidence: if code == "no-route" {
            vec![words.to_owned()]
        } else {
            Vec::new()
        },
        cure: one::cure_of(code, &step),
    }
}

/// What may lie behind it.
pub(super) fn explain(told: &Told, ends: &[End<'_>], found: &mut Vec<Finding>) {
    // The dumps tell the same, and more.
    if let Some(status) = told.status
        && !ends.iter().any(|end| end.failed().is_some())
    {
        let known = status::Known {
            worked: told.worked,
            does: told.operation.as_deref().and_then(status::Does::by_name),
            ..status::Known::default()
        };
        found.extend(status::possible(status, known));
    }
    if ends.iter().all(|end| end.last_error.is_none()) {
        for (code, words) in &told.problems {
            found.push(said(code, words, told.step));
        }
    }
    if !told.problems.is_empty() {
        return;
    }
    let Some(errno) = told
        .errno
        .filter(|_| ends.iter().all(|end| end.last_error.is_none()))
    else {
        return;
    };
    let shown = told_errno(errno);
    let mut tell = |code: &str, cause: String, cure: String| {
        found.push(Finding {
            code: code.to_owned(),
            weight: Weight::Possible,
            end: None,
            cause,
            evidence: vec![shown.clone()],
            cure,
        });
    };
    match (errno, told.step) {
        (22, Some((from, to))) => {
            let required = rules::required(Transport::Rc, from, to).unwrap_or_default();
            tell(
                "mask",
                format!("the mask is not that of {from} -> {to}"),
                format!("an RC QP needs {} and IBV_QP_STATE; `qp states` has the other transports and what else is allowed", Bits(required)),
            );
            if to == IBV_QPS_RTR {
                tell(
                    "gid-empty",
                    "sgid_index is an empty slot, of another address family than dgid, or RoCE v1; or dgid is all zero".to_owned(),
                    "`qp devices` lists the GID table and the entry to take; the peer has to send the GID of that entry".to_owned(),
                );
                tell(
                    "grh-missing",
                    "is_global is 0 on RoCE".to_owned(),
                    "set ah_attr.is_global to 1 and fill in ah_attr.grh: Ethernet has no LIDs".to_owned(),
                );
                tell("mtu-over-port", "path_mtu is above the port's active_mtu".to_owned(), "take the smaller of both ends' active_mtu".to_owned());
            }
            if to == IBV_QPS_INIT {
                tell(
                    "port-assumed",
                    "port_num or pkey_index is not in the device's tables".to_owned(),
                    "`qp devices` lists the ports; on RoCE pkey_index is 0".to_owned(),
                );
            }
            tell(
                "value",
                "an attribute is out of its range: retry_cnt and rnr_retry 0 to 7, timeout and min_rnr_timer 0 to 31, depths up \
                 to the device's max_qp_rd_atom and max_qp_init_rd_atom"
                    .to_owned(),
                "`qp doctor -- PROGRAM` names it; so does the library's qp_modify or Qp::modify".to_owned(),
            );
        }
        (22, None) if told.modify => {
            tell(
                "mask",
                "the mask is not that of the move: a bit is missing, or one is set that the move does not allow".to_owned(),
                "`qp states` has what each move needs and allows; say in the log from which state to which it was".to_owned(),
            );
            tell(
                "no-transition",
                "the QP is not in the state from which the move begins".to_owned(),
                "ibv_query_qp tells its state; RESET -> INIT -> RTR -> RTS is the way, and from ERR only RESET leads on".to_owned(),
            );
            tell(
                "gid-empty",
                "to RTR: sgid_index is an empty slot or of another address family than dgid, dgid is all zero, or is_global is 0 on RoCE".to_owned(),
                "`qp devices` lists the GID table and the entry to take; set ah_attr.is_global to 1".to_owned(),
            );
            tell(
                "value",
                "an attribute is out of its range, or above what port or device can do".to_owned(),
                "`qp doctor -- PROGRAM` names it; so does the library's qp_modify or Qp::modify".to_owned(),
            );
        }
        (number, _) if told.modify && Errno::from_raw(number).is_no_route() => tell(
            "no-route",
            "there is no route to the peer's GID, or no neighbour answers there".to_owned(),
            "`qp doctor path --remote GID` says which local entry can reach the peer".to_owned(),
        ),
        (12, None) if told.post => {
            tell(
                "queue-full",
                "the queue is full: its slots are free when a signaled completion behind them was polled".to_owned(),
                "post fewer, poll more, signal every so many, or make the queue deeper".to_owned(),
            );
            tell("request-too-big", "too many SGEs, or more inline data than the QP has".to_owned(), "compare with the cap that ibv_create_qp wrote back".to_owned());
        }
        (22, None) if told.post => {
            tell(
                "request-too-big",
                "too many SGEs, more inline data than the QP has, a message over max_msg_sz, or an operation that the transport lacks".to_owned(),
                "compare with the cap that ibv_create_qp wrote back, and with max_msg_sz of ibv_query_port; `qp doctor -- PROGRAM` names it".to_owned(),
            );
            tell(
                "post-state",
                "the state of the QP takes no such request: sends need RTS, receives INIT or later".to_owned(),
                "bring the QP to RTS before the first send; ibv_query_qp tells its state".to_owned(),
            );
        }
        (12, None) => tell(
            "memlock",
            "the limit on locked memory is reached, or a limit of the device".to_owned(),
            "`qp doctor env` prints the limits; compare sizes with ibv_query_device".to_owned(),
        ),
        (1 | 13, _) => tell(
            "access",
            "this user may not do that".to_owned(),
            "`qp doctor env` shows the access to /dev/infiniband; a Q_Key of 0x80000000 and above, and raw Queue Pairs, need CAP_NET_RAW".to_owned(),
        ),
        (19 | 38, _) => tell(
            "no-device",
            "the kernel has no RDMA, or no such device".to_owned(),
            "load the adapter's driver and ib_uverbs; `qp devices` lists what is there".to_owned(),
        ),
        (16, _) => tell("busy", "something else still uses the object".to_owned(), "destroy Queue Pairs before their CQs, SRQs and PDs, windows before their region, regions before their PD".to_owned()),
        _ => tell(
            "refused",
            "a call was refused, and the errno alone does not say why".to_owned(),
            "run it as `qp doctor -- PROGRAM`: the software device says why it refuses a call".to_owned(),
        ),
    }
}
