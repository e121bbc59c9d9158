//! Runs ignored tests in network namespaces of their own, where addresses can be added at will.

use std::process::Command;

/// Runs the ignored test `name` (its whole path) of this program inside a new network namespace, after
/// the shell commands `prepare`; false, with the reason said, where that is not permitted.
pub fn in_namespace(name: &str, prepare: &str) -> bool {
    let program = std::env::current_exe().expect("this program's path");
    let script = format!("{prepare}\nexec \"$0\" --exact --ignored --nocapture \"$1\"");
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let child = Command::new("unshare")
        .args(["--net", "--", "sh", "-e", "-c", &script])
        .args([program.as_os_str(), name.as_ref()])
        .env("PATH", path)
        .output();
    let skip = |why: &str| {
        println!("SKIP {name}: {why}");
        false
    };
    let output = match child {
        Ok(output) => output,
        Err(why) => return skip(&format!("unshare cannot be run: {why}")),
    };
    let [out, err] = [&output.stdout, &output.stderr].map(|o| String::from_utf8_lossy(o));
    if !out.contains("running 1 test") {
        return skip(err.trim());
    }
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{out}\n{err}"
    );
    true
}

/// Commands that make a virtual wire whose end `v0` has three addresses of each family: 10.9.0.1 to .3
/// and fd00:9::1 to ::3.
pub const VETH: &str = "
ip link set lo up
ip link add v0 type veth peer name v1
ip link set v0 up
ip link set v1 up
for i in 1 2 3; do
    ip addr add 10.9.0.$i/24 dev v0
    ip addr add fd00:9::$i/64 dev v0 nodad
done
# The interface comes up in its own time.
for i in $(seq 100); do
    if ip -6 route show table local dev v0 | grep -q ff00; then break; fi
    sleep 0.05
done";
