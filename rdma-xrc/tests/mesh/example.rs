//! The example does what it says.

#[path = "../../examples/mesh_alltoall.rs"]
#[allow(dead_code)]
mod mesh_alltoall;

#[test]
fn everybody_reaches_everybody_over_both() {
    for over in ["xrc", "rc"] {
        mesh_alltoall::run(over, 2, 2, 5).unwrap();
    }
}
