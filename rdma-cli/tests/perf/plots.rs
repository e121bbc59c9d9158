//! Pictures.

use crate::run::run;

/// The names of the elements of a document, in order, each as often as it stands there. It panics at what is not well formed.
fn elements(document: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    let mut rest = document;
    while let Some(start) = rest.find('<') {
        let end = rest[start..].find('>').expect("a tag ends") + start;
        let tag = &rest[start + 1..end];
        let attributes = tag.matches('"').count();
        assert!(
            attributes.is_multiple_of(2) && !tag.contains('<'),
            "<{tag}>"
        );
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
            None => {
                let name = tag.split([' ', '/']).next().unwrap().to_owned();
                if !tag.ends_with('/') {
                    open.push(name.clone());
                }
                all.push(name);
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

/// A document of as many points for each line as there are sizes.
#[test]
fn a_point_for_each_size() {
    let path = std::env::temp_dir().join(format!("qp-plot-{}.svg", std::process::id()));
    for (line, sizes, lines) in [
        ("lat -s 2,64,1K,4K -n 20", 4, 4),
        ("bw -s 64,4K,64K -n 20", 3, 2),
        ("bw --op faa -n 20", 1, 2),
    ] {
        let ended = run(&format!("{line} --plot {}", path.display()));
        assert!(ended.status.success(), "{ended:?}");
        let picture = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let all = elements(&picture);
        let count = |name: &str| all.iter().filter(|element| *element == name).count();
        assert_eq!(all[0], "svg");
        assert_eq!(
            (count("circle"), count("polyline")),
            (sizes * lines, lines),
            "{line}"
        );
        // Every number is one.
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
    }
}
