//! The examples do what they say, both ends in this process.
// Each is a program of its own, with what they have in common.
#![allow(clippy::duplicate_mod)]

#[path = "../examples/key_value.rs"]
#[allow(dead_code)]
mod key_value;
#[path = "../examples/pingpong.rs"]
#[allow(dead_code)]
mod pingpong;
#[path = "../examples/recovery.rs"]
#[allow(dead_code)]
mod recovery;
#[path = "../examples/srq_server.rs"]
#[allow(dead_code)]
mod srq_server;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn pingpong_by_each_transport() {
    for transport in ["rc", "uc", "ud"] {
        pingpong::run(words(&format!("--transport {transport}"))).unwrap();
    }
    let error = pingpong::run(words("--transport rd")).unwrap_err();
    assert!(
        error.to_string().contains("none of rc, uc and ud"),
        "{error}"
    );
}

#[test]
fn a_server_with_one_queue_for_many_clients() {
    srq_server::run(words("--clients 12")).unwrap();
}

#[test]
fn values_are_read_whole_while_they_change() {
    key_value::run(words("")).unwrap();
}

#[test]
fn records_survive_the_death_of_their_server() {
    recovery::run(words("")).unwrap();
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    // Whether or not there is a libibverbs: it has no such device.
    assert!(recovery::run(words("--device no_such_device")).is_err());
}
