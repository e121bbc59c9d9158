//! The examples do what they say, both ends in this process.

#[path = "../examples/xrc_pingpong.rs"]
#[allow(dead_code)]
mod xrc_pingpong;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_server_answers_each_of_its_clients() {
    xrc_pingpong::run(words("--clients 4")).unwrap();
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    // Whether or not there is a libibverbs: it has no such device.
    assert!(xrc_pingpong::run(words("--device no_such_device")).is_err());
}
