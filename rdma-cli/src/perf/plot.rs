//! Figures over sizes, drawn: SVG with logarithmic axes.

use std::fmt::Write as _;

/// A picture.
pub struct Plot {
    pub title: String,
    /// What the figures are, with their unit.
    pub y: &'static str,
    pub lines: Vec<Line>,
}

/// A line of a picture, with a point for each size.
pub struct Line {
    pub name: &'static str,
    /// Bytes, and the figure: positive.
    pub points: Vec<(u32, f64)>,
}

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 100.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 60.0;
/// Told apart also by those who see no red or no green, and in grey.
const COLOURS: [&str; 4] = ["#0b5fa5", "#d55e00", "#117733", "#882255"];

/// An axis whose positions are logarithms.
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// Room for all values, and a little more.
    fn around(values: impl Iterator<Item = f64> + Clone, start: f64, end: f64, air: f64) -> Axis {
        let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        Axis {
            from: (low / air).ln(),
            to: (high * air).ln(),
            start,
            end,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.ln() - self.from) / (self.to - self.from);
        self.start + part * (self.end - self.start)
    }

    fn shows(&self, value: f64) -> bool {
        (self.from..=self.to).contains(&value.ln())
    }
}

/// The picture as a document.
pub fn svg(mut plot: Plot) -> String {
    for line in &mut plot.lines {
        // Sizes are measured in the order in which they were asked for.
        line.points.sort_by_key(|(size, _)| *size);
    }
    let plot = &plot;
    let all = || plot.lines.iter().flat_map(|line| &line.points);
    let x = Axis::around(
        all().map(|point| f64::from(point.0)),
        LEFT,
        WIDTH - RIGHT,
        1.3,
    );
    let y = Axis::around(all().map(|point| point.1), HEIGHT - BOTTOM, TOP, 1.5);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = draw(&mut out, plot, &x, &y);
    out
}

fn draw(out: &mut String, plot: &Plot, x: &Axis, y: &Axis) -> std::fmt::Result {
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">"
    )?;
    writeln!(
        out,
        "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>"
    )?;
    writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"30\" font-size=\"16\" font-weight=\"bold\">{}</text>",
        escaped(&plot.title)
    )?;
    writeln!(out, "<g class=\"axes\" stroke-width=\"1\">")?;
    for value in ticks(x, sizes(x)) {
        let at = x.at(value);
        let (top, bottom) = (TOP, HEIGHT - BOTTOM);
        writeln!(
            out,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 20.0,
            bytes(value)
        )?;
    }
    for value in ticks(y, figures(y)) {
        let at = y.at(value);
        writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.5,
            plain(value)
        )?;
    }
    writeln!(
        out,
        "<path d=\"M{LEFT} {TOP}V{}H{}\" stroke=\"#222\" fill=\"none\"/>",
        HEIGHT - BOTTOM,
        WIDTH - RIGHT
    )?;
    let (middle, centre) = ((LEFT + WIDTH - RIGHT) / 2.0, (TOP + HEIGHT - BOTTOM) / 2.0);
    writeln!(
        out,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">message size</text>",
        HEIGHT - 16.0
    )?;
    writeln!(
        out,
        "<text transform=\"translate(20 {centre}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escaped(plot.y)
    )?;
    writeln!(out, "</g>")?;
    for (line, colour) in plot.lines.iter().zip(COLOURS.iter().cycle()) {
        writeln!(
            out,
            "<g class=\"line\" id=\"{}\" fill=\"{colour}\">",
            escaped(line.name)
        )?;
        let points: Vec<_> = line
            .points
            .iter()
            .map(|(size, figure)| format!("{:.1},{:.1}", x.at(f64::from(*size)), y.at(*figure)))
            .collect();
        writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        )?;
        for (size, figure) in &line.points {
            writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}: {}, {figure:.4}</title></circle>",
                x.at(f64::from(*size)),
                y.at(*figure),
                escaped(line.name),
                bytes(f64::from(*size))
            )?;
        }
        writeln!(out, "</g>")?;
    }
    names(out, plot, x, y)?;
    writeln!(out, "</svg>")
}

/// The names of the lines, each at its end; those that would cover one another are moved apart.
fn names(out: &mut String, plot: &Plot, x: &Axis, y: &Axis) -> std::fmt::Result {
    let mut ends: Vec<(f64, f64, &str, &str)> = Vec::new();
    for (line, colour) in plot.lines.iter().zip(COLOURS.iter().cycle()) {
        if let Some((size, figure)) = line.points.last() {
            ends.push((y.at(*figure), x.at(f64::from(*size)), line.name, colour));
        }
    }
    ends.sort_by(|one, two| two.0.total_cmp(&one.0));
    let mut below = HEIGHT;
    for (at, right, name, colour) in ends {
        let at = at.min(below - 15.0);
        below = at;
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" font-weight=\"bold\">{}</text>",
            right + 10.0,
            at + 4.5,
            escaped(name)
        )?;
    }
    Ok(())
}

/// Powers of two within an axis, as far apart as their names need.
fn sizes(axis: &Axis) -> Vec<f64> {
    let powers = |step: i32| -> Vec<f64> {
        let all = (0..40)
            .step_by(step as usize)
            .map(|power| f64::from(power).exp2());
        all.filter(|value| axis.shows(*value)).collect()
    };
    let fitting = (1..6).map(powers).find(|powers| powers.len() <= 9);
    fitting.unwrap_or_default()
}

/// Round numbers within an axis, as many as have room: from every half of a decade's first digit to powers of ten alone.
fn figures(axis: &Axis) -> Vec<f64> {
    let of = |steps: &[f64]| -> Vec<f64> {
        let decades = (-6..16).map(|power| 10f64.powi(power));
        let all = decades.flat_map(|decade| steps.iter().map(move |step| step * decade));
        all.filter(|value| axis.shows(*value)).collect()
    };
    let halves: Vec<f64> = (2..20).map(|half| f64::from(half) / 2.0).collect();
    let digits: Vec<f64> = (1..10).map(f64::from).collect();
    let all = [&halves[..], &digits, &[1.0, 2.0, 5.0], &[1.0]];
    let fitting = all.into_iter().map(of).find(|marks| marks.len() <= 10);
    fitting.unwrap_or_default()
}

/// Some marks, also where no round number lies within.
fn ticks(axis: &Axis, round: Vec<f64>) -> Vec<f64> {
    if round.is_empty() {
        vec![((axis.from + axis.to) / 2.0).exp()]
    } else {
        round
    }
}

/// A size with its unit.
fn bytes(value: f64) -> String {
    match value {
        value if value < 1024.0 => format!("{} B", plain(value)),
        value if value < 1048576.0 => format!("{} KiB", plain(value / 1024.0)),
        value => format!("{} MiB", plain(value / 1048576.0)),
    }
}

/// A number with no more digits than it needs.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_have_round_names() {
        let axis = Axis::around([2.0, 8388608.0].into_iter(), 0.0, 100.0, 1.3);
        let names: Vec<_> = sizes(&axis).into_iter().map(bytes).collect();
        assert_eq!(
            names,
            [
                "8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB", "2 MiB"
            ]
        );
        let axis = Axis::around([0.9, 31.0].into_iter(), 0.0, 100.0, 1.5);
        let names: Vec<_> = figures(&axis).into_iter().map(plain).collect();
        assert_eq!(names, ["1", "2", "5", "10", "20"]);
        // One mark would not tell how far apart two values are.
        let axis = Axis::around([4893.0].into_iter(), 0.0, 100.0, 1.5);
        let names: Vec<_> = figures(&axis).into_iter().map(plain).collect();
        assert_eq!(
            names,
            [
                "3500", "4000", "4500", "5000", "5500", "6000", "6500", "7000"
            ]
        );
    }

    #[test]
    fn lines_go_from_left_to_right() {
        let line = Line {
            name: "min",
            points: vec![(4096, 3.0), (64, 1.0), (512, 2.0)],
        };
        let picture = svg(Plot {
            title: String::new(),
            y: "µs",
            lines: vec![line],
        });
        let points = picture.split("points=\"").nth(1).unwrap();
        let points = points.split('"').next().unwrap();
        let xs: Vec<f64> = (points.split(' '))
            .map(|point| point.split(',').next().unwrap().parse().unwrap())
            .collect();
        assert!(xs.len() == 3 && xs.is_sorted(), "{points}");
    }

    #[test]
    fn one_point_is_a_picture_too() {
        let line = Line {
            name: "a < b",
            points: vec![(64, 3.0)],
        };
        let picture = svg(Plot {
            title: "\"&\"".to_owned(),
            y: "µs",
            lines: vec![line],
        });
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
        assert_eq!(picture.matches("<circle").count(), 1);
        assert!(picture.contains("a &lt; b") && picture.contains("&quot;&amp;&quot;"));
    }
}
