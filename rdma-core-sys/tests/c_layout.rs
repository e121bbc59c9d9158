//! Every size, alignment, offset and constant against what the C compiler says of the installed `infiniband/verbs.h`.
//!
//! Set `VERBS_INCLUDE_DIR` to compare with the headers of another rdma-core, and `VERBS_RELEASE` to its release, such as 44:
//! what these headers have then follows from that, and nothing may be missing or there beside it.

mod common;

use rdma_core_sys::layout::{self, Layout};
use std::collections::{BTreeMap, BTreeSet};

/// What some release has first, of those that were looked at: 33, 44, 56 and 65. Nothing else may be missing from a header.
const NEWER: &[(u32, &[&str])] = &[
    (
        44,
        &[
            "offset ibv_device_attr_ex phys_port_cnt_ex",
            "offset ibv_dm handle",
            "offset ibv_qp_ex wr_atomic_write",
            "value IBV_RATE_800_GBPS",
            "value IBV_RATE_1200_GBPS",
            "value IBV_FORK_DISABLED",
            "value IBV_FORK_ENABLED",
            "value IBV_FORK_UNNEEDED",
            "value IBV_DM_MASK_HANDLE",
            "value IBV_PORT_LINK_SPEED_NDR_SUP",
            "value IBV_QP_EX_WITH_ATOMIC_WRITE",
            "value IBV_WC_ATOMIC_WRITE",
            "value IBV_WC_DRIVER2",
            "value IBV_WC_DRIVER3",
            "value IBV_WR_ATOMIC_WRITE",
        ],
    ),
    (
        56,
        &[
            "offset ibv_port_attr active_speed_ex",
            "offset ibv_qp_ex wr_flush",
            "value IBV_WC_FLUSH",
            "value IBV_WR_FLUSH",
            "value IBV_ACCESS_FLUSH_GLOBAL",
            "value IBV_ACCESS_FLUSH_PERSISTENT",
            "value IBV_QP_EX_WITH_FLUSH",
            "value IBV_PORT_LINK_SPEED_XDR_SUP",
        ],
    ),
    (
        65,
        &[
            "offset verbs_context free_buf",
            "offset verbs_context alloc_buf",
            "offset verbs_context dm_export_dmabuf_fd",
            "offset verbs_context reg_mr_ex",
            "offset verbs_context dealloc_dmah",
            "offset verbs_context alloc_dmah",
            "value IBV_EVENT_DEVICE_SPEED_CHANGE",
        ],
    ),
];

/// The types that have grown, by how many bytes, and in which release.
const GREW: &[(&str, i64, u32)] = &[
    ("ibv_qp_ex", 8, 44),
    ("ibv_port_attr", 4, 56),
    ("ibv_qp_ex", 8, 56),
    ("verbs_context", 48, 65),
];

/// One question: its name, the C expression, and our answer.
struct Question {
    name: String,
    expression: String,
    ours: i64,
}

fn questions() -> Vec<Question> {
    let mut all = Vec::new();
    let mut ask = |name: String, expression: String, ours: i64| {
        all.push(Question {
            name,
            expression,
            ours,
        })
    };
    for layout in layout::layouts() {
        let Layout {
            name,
            kind,
            within,
            size,
            align,
            fields,
        } = layout;
        // The C type, where it can be named, and what to put before a field: the type and path, and the offset to take off.
        let (type_name, base, path, start) = match *within {
            None => (
                Some(format!("{kind} {name}")),
                format!("{kind} {name}"),
                String::new(),
                None,
            ),
            Some((base, "")) => (
                None,
                format!("struct {base}"),
                String::new(),
                Some(fields[0].0),
            ),
            Some((base, path)) => (
                Some(format!("__typeof__(((struct {base} *)0)->{path})")),
                format!("struct {base}"),
                format!("{path}."),
                Some(path),
            ),
        };
        let start = start.map_or("0".into(), |start| format!("offsetof({base}, {start})"));
        if let Some(type_name) = type_name {
            ask(
                format!("size {name}"),
                format!("sizeof({type_name})"),
                *size as i64,
            );
            ask(
                format!("align {name}"),
                format!("_Alignof({type_name})"),
                *align as i64,
            );
        }
        for (field, offset) in *fields {
            ask(
                format!("offset {name} {field}"),
                format!("offsetof({base}, {path}{field}) - {start}"),
                *offset as i64,
            );
        }
    }
    for (name, value) in layout::values() {
        ask(format!("value {name}"), (*name).to_string(), *value);
    }
    use rdma_core_sys as sys;
    for (name, value) in [
        (
            "IBV_ACCESS_OPTIONAL_RANGE",
            i64::from(sys::IBV_ACCESS_OPTIONAL_RANGE),
        ),
        (
            "IBV_ADVISE_MR_FLAG_FLUSH",
            i64::from(sys::IBV_ADVISE_MR_FLAG_FLUSH),
        ),
        (
            "IBV_LINK_LAYER_UNSPECIFIED",
            i64::from(sys::IBV_LINK_LAYER_UNSPECIFIED),
        ),
        (
            "IBV_LINK_LAYER_INFINIBAND",
            i64::from(sys::IBV_LINK_LAYER_INFINIBAND),
        ),
        (
            "IBV_LINK_LAYER_ETHERNET",
            i64::from(sys::IBV_LINK_LAYER_ETHERNET),
        ),
        ("IBV_QPF_GRH_REQUIRED", i64::from(sys::IBV_QPF_GRH_REQUIRED)),
        ("IBV_SYSFS_NAME_MAX", sys::IBV_SYSFS_NAME_MAX as i64),
        ("IBV_SYSFS_PATH_MAX", sys::IBV_SYSFS_PATH_MAX as i64),
        ("__VERBS_ABI_IS_EXTENDED", sys::VERBS_ABI_IS_EXTENDED as i64),
    ] {
        ask(format!("value {name}"), name.into(), value);
    }
    all
}

/// The program that answers the questions of `which`, question `i` on line `HEAD + i`.
fn program(questions: &[Question], which: impl Fn(usize) -> bool) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
    );
    assert_eq!(text.lines().count() + 1, HEAD);
    for (i, question) in questions.iter().enumerate() {
        if which(i) {
            text += &format!(
                "printf(\"{i} %lld\\n\", (long long)({}));",
                question.expression
            );
        }
        text.push('\n');
    }
    text + "return 0; }\n"
}

const HEAD: usize = 5;

#[test]
fn the_c_compiler_agrees() {
    let name = "c_layout";
    let dir = common::scratch(name);
    let path = |file: &str| dir.join(file).to_str().unwrap().to_owned();
    let include = std::env::var("VERBS_INCLUDE_DIR")
        .map_or_else(|_| "-DDEFAULT_INCLUDE".into(), |dir| format!("-I{dir}"));

    std::fs::write(path("probe.c"), "#include <infiniband/verbs.h>\n").unwrap();
    let Some(probe) = common::cc(&["-fsyntax-only", &include, &path("probe.c")]) else {
        return common::skip(name, "no C compiler (cc)");
    };
    if !probe.status.success() {
        let says = String::from_utf8_lossy(&probe.stderr);
        assert!(
            says.contains("infiniband/verbs.h: No such file"),
            "the header does not compile: {says}"
        );
        return common::skip(name, "no infiniband/verbs.h (Debian: libibverbs-dev)");
    }

    // First: which questions does this header not understand? The compiler names their lines.
    let questions = questions();
    std::fs::write(path("ask.c"), program(&questions, |_| true)).unwrap();
    let syntax = common::cc(&["-fsyntax-only", "-fmax-errors=0", &include, &path("ask.c")])
        .expect("cc ran before");
    let unknown: BTreeSet<usize> = String::from_utf8_lossy(&syntax.stderr)
        .lines()
        .filter(|line| line.contains("error:"))
        .map(|line| {
            let number = line
                .strip_prefix(&path("ask.c"))
                .and_then(|rest| rest.split(':').nth(1)?.parse::<usize>().ok());
            number.unwrap_or_else(|| panic!("an error that is not about a question: {line}")) - HEAD
        })
        .collect();
    // Which of them it must not understand follows from its release, where that is told.
    let release = std::env::var("VERBS_RELEASE")
        .ok()
        .map(|text| text.parse::<u32>().expect("VERBS_RELEASE is a number"));
    let newer: BTreeMap<&str, u32> = NEWER
        .iter()
        .flat_map(|(release, names)| names.iter().map(move |name| (*name, *release)))
        .collect();
    let surprises: Vec<_> = (questions.iter().enumerate())
        .filter(|(i, question)| {
            let since = newer.get(&*question.name).copied();
            match (unknown.contains(i), since, release) {
                (true, None, _) => true,
                (unknown, Some(since), Some(release)) => unknown != (since > release),
                _ => false,
            }
        })
        .map(|(i, question)| (unknown.contains(&i), &question.name))
        .collect();
    assert!(
        surprises.is_empty(),
        "unknown to this header, or not: {surprises:#?}"
    );

    // Then: its answers to the rest.
    std::fs::write(
        path("ask.c"),
        program(&questions, |i| !unknown.contains(&i)),
    )
    .unwrap();
    let build = common::cc(&["-o", &path("ask"), &include, &path("ask.c")]).expect("cc ran before");
    assert!(
        build.status.success(),
        "{}",
        String::from_utf8_lossy(&build.stderr)
    );
    let run = std::process::Command::new(path("ask"))
        .output()
        .expect("the program runs");
    assert!(run.status.success());
    let theirs: BTreeMap<usize, i64> = String::from_utf8(run.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            line.split_once(' ')
                .map(|(i, n)| (i.parse().unwrap(), n.parse().unwrap()))
                .unwrap()
        })
        .collect();
    assert_eq!(theirs.len(), questions.len() - unknown.len());

    let answer = |name: &str| {
        let i = questions
            .iter()
            .position(|question| question.name == name)
            .unwrap();
        (questions[i].ours, theirs[&i])
    };
    // verbs_context grows at the front: its fields keep their distance from the context at its end.
    let (ours, c) = answer("offset verbs_context context");
    let shift = ours - c;
    let (ours, c) = answer("size verbs_context");
    assert_eq!(ours - c, shift, "verbs_context grows at the front only");

    let mut differing = Vec::new();
    for (i, question) in questions.iter().enumerate() {
        let Some(&c) = theirs.get(&i) else { continue };
        let ours = match question.name.strip_prefix("offset verbs_context ") {
            Some(_) => question.ours - shift,
            None => question.ours,
        };
        // By how much a header of each release is behind; without a release, of any.
        let behind = |release: u32| -> i64 {
            (GREW.iter())
                .filter(|(name, _, since)| {
                    question.name == format!("size {name}") && *since > release
                })
                .map(|(_, by, _)| by)
                .sum()
        };
        let fits = match release {
            Some(release) => ours - c == behind(release),
            None => [0, 44, 56, u32::MAX].iter().any(|&r| ours - c == behind(r)),
        };
        if !fits {
            differing.push(format!("{}: C says {c}, we say {ours}", question.name));
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(
        theirs.len() > 600,
        "only {} questions were answered",
        theirs.len()
    );
}
