#!/usr/bin/env python3
"""Rules of the repository that no compiler checks.

  rules.py versions   one version, one minimum Rust (dependencies included), licences and change log in step
  rules.py build      the default build needs no bindgen, cmake, pkg-config or C compiler, and no build.rs of ours
  rules.py unsafe     `unsafe` stands only in the modules named below; no verbs symbol is exported

Each prints what it checked and exits with 1 where a rule is broken.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Where `unsafe` may stand; everything else must do without.
UNSAFE_ALLOWED = (
    "rdma-core-sys/src/",
    "rdma-soft/src/mem/",
    "rdma-soft/src/verbs/",
    "rdma-soft/preload/src/",
    "rdma-soft/fuzz/",
    "rdma-qp/src/raw/",
    "rdma-capi/src/",
    "conformance/src/device/",
    "benches/src/",
)
# Where symbols may be exported: what stands in front of libibverbs has its names; libqp exports by its one macro, which is the
# panic boundary and the NULL check.
EXPORTS_ALLOWED = ("rdma-soft/preload/src/", "rdma-capi/src/export.rs")
# Who may have a build script: symbol versions are a matter for the linker, and no source file can tell it.
BUILD_SCRIPTS_ALLOWED = {"rdma-soft-preload"}
# Build tools that a default build must never pull in.
FORBIDDEN_IN_BUILD = {"bindgen", "cmake", "pkg-config", "cc", "clang-sys", "rdma-sys", "autotools"}

problems = []


def problem(text):
    """Notes one broken rule."""
    problems.append(text)


def cargo(*arguments):
    """The output of a cargo command that must succeed."""
    done = subprocess.run(["cargo", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"cargo {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def numbers(version):
    """A version as comparable numbers."""
    parts = [int(part) for part in re.split(r"[.+-]", version)[:3] if part.isdigit()]
    return tuple(parts + [0] * (3 - len(parts)))


def versions():
    """One version everywhere, and a minimum Rust that the dependencies allow."""
    metadata = json.loads(cargo("metadata", "--format-version=1", "--locked"))
    members = set(metadata["workspace_members"])
    ours = [package for package in metadata["packages"] if package["id"] in members]
    version, minimum = ours[0]["version"], ours[0]["rust_version"]
    for package in ours:
        name = package["name"]
        for key, wanted in (("version", version), ("rust_version", minimum), ("edition", "2024"), ("license", "MIT OR Apache-2.0")):
            if package[key] != wanted:
                problem(f"{name}: {key} is {package[key]}, elsewhere {wanted}")
        for dependency in package["dependencies"]:
            if dependency.get("path") and dependency["req"] != f"^{version}":
                problem(f"{name} asks for {dependency['name']} {dependency['req']}, the workspace is {version}")
        for target in package["targets"]:
            if "custom-build" in target["kind"] and name not in BUILD_SCRIPTS_ALLOWED:
                problem(f"{name} has a build script: {target['src_path']}")
    newer = [
        f"{package['name']} {package['version']} needs Rust {package['rust_version']}"
        for package in metadata["packages"]
        if package["rust_version"] and numbers(package["rust_version"]) > numbers(minimum)
    ]
    for text in newer:
        problem(f"{text}, but the workspace promises {minimum}")
    for licence, words in (("LICENSE-MIT", "Permission is hereby granted"), ("LICENSE-APACHE", "Apache License")):
        if words not in (ROOT / licence).read_text():
            problem(f"{licence} does not hold its licence")
    newest = re.search(r"^## \[?(?:Unreleased|(\d+\.\d+\.\d+))", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if not newest or newest[1] not in (None, version):
        problem(f"CHANGELOG.md does not begin with {version} or Unreleased")
    if f"Rust {minimum}" not in (ROOT / "README.md").read_text():
        problem(f"README.md does not name the minimum Rust {minimum}")
    print(f"{len(ours)} crates at {version}, minimum Rust {minimum}, {len(metadata['packages'])} packages allow it")


def build():
    """The dependency tree of a default build."""
    tree = cargo("tree", "--workspace", "--edges=normal,build", "--prefix=none", "--format={p}", "--locked")
    names = {line.split()[0] for line in tree.splitlines() if line.strip()}
    for name in sorted(names & FORBIDDEN_IN_BUILD):
        problem(f"a default build pulls in {name}")
    below = cargo("tree", "-p", "rdma-qp", "--edges=normal,build", "--prefix=none", "--format={p}", "--locked")
    if re.search(r"^rdma-soft ", below, re.M):
        problem("rdma-qp depends on rdma-soft in a production build")
    print(f"{len(names)} packages in the default build, none of {', '.join(sorted(FORBIDDEN_IN_BUILD))}")


def code_only(text):
    """Rust source without comments and string literals (line structure kept)."""
    pattern = re.compile(r'''//[^\n]*|/\*.*?\*/|r(#+)".*?"\1|'(?:\\.|[^'\\])'|b?"(?:\\.|[^"\\])*"''', re.S)
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def unsafe():
    """`unsafe` by file."""
    seen = 0
    for path in sorted([*ROOT.glob("*/src/**/*.rs"), *ROOT.glob("rdma-soft/*/src/**/*.rs")]):
        name = path.relative_to(ROOT).as_posix()
        code = code_only(path.read_text())
        if re.search(r"no_mangle|export_name|global_asm", code) and not name.startswith(EXPORTS_ALLOWED):
            problem(f"{name}: exports a symbol; no crate here may")
        if path.name == "tests.rs" or "/tests/" in name:
            continue
        found = [number for number, line in enumerate(code.splitlines(), 1) if re.search(r"\bunsafe\b", line)]
        seen += len(found)
        if found and not name.startswith(UNSAFE_ALLOWED):
            problem(f"{name}:{found[0]}: unsafe outside the modules that may have it")
        if re.search(r"allow\((?:\w+, )*unsafe_code", code) and not any(
            entry.startswith(name.rsplit("/", 1)[0]) or name.startswith(entry) for entry in UNSAFE_ALLOWED
        ):
            problem(f"{name}: allows unsafe_code")
    for crate in ("rdma-soft", "rdma-soft/preload", "rdma-qp", "rdma-cli", "conformance"):
        roots = [path for path in ((ROOT / crate / "src/lib.rs"), (ROOT / crate / "src/main.rs")) if path.exists()]
        for path in roots:
            if not re.search(r"#!\[(?:deny|forbid)\(unsafe_code\)\]", path.read_text()):
                problem(f"{path.relative_to(ROOT)}: does not deny unsafe_code")
    print(f"{seen} lines with unsafe, all in {', '.join(UNSAFE_ALLOWED)}")


def main():
    rules = {"versions": versions, "build": build, "unsafe": unsafe}
    if len(sys.argv) != 2 or sys.argv[1] not in rules:
        sys.exit(__doc__)
    rules[sys.argv[1]]()
    for text in problems:
        print(f"BROKEN: {text}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
