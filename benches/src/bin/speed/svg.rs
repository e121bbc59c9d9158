//! Plots: lines over logarithmic axes, with the spread of each point.

use std::fmt::Write;

/// One line of a plot.
pub struct Line<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Its points: place, middle, smallest and largest value, all above 0.
    pub points: Vec<(f64, f64, f64, f64)>,
}

/// A plot.
pub struct Plot<'a> {
    /// What stands above it.
    pub title: &'a str,
    /// What the horizontal axis is, with its unit.
    pub x: &'a str,
    /// What the vertical axis is, with its unit.
    pub y: &'a str,
    /// Its lines.
    pub lines: Vec<Line<'a>>,
    /// How a place is written.
    pub place: fn(f64) -> String,
}

/// Height of all of it.
const HEIGHT: f64 = 460.0;
/// Left, top, right and bottom of the drawing.
const BOX: (f64, f64, f64, f64) = (72.0, 44.0, 740.0, 400.0);
/// Colours that are told apart in grey, too, and by most eyes (Okabe and Ito's).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000",
];

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A number with as many digits as tell something.
pub fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// A number on an axis.
fn tick(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e4 => format!("{} k", v / 1e3),
        v => format!("{}", (v * 1e6).round() / 1e6),
    }
}

/// A logarithmic axis from one edge of the drawing to the other.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Over all of `values`, with some room beyond them.
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64, room: f64) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        Scale {
            low: (low / room).ln(),
            high: (high * room).ln(),
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.ln() - self.low) / (self.high - self.low);
        self.from + part * (self.to - self.from)
    }

    /// 1, 2 and 5 of each power of ten, or the powers alone where there would be too many.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high - self.low) / std::f64::consts::LN_10;
        let steps: &[f64] = match decades {
            d if d > 6.0 => &[1.0],
            d if d > 3.0 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let first = (self.low / std::f64::consts::LN_10).floor() as i32;
        let last = (self.high / std::f64::consts::LN_10).ceil() as i32;
        let all = (first..=last).flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
        all.filter(|v| (self.low..=self.high).contains(&v.ln()))
            .collect()
    }
}

impl Plot<'_> {
    /// The plot as a document.
    pub fn draw(&self) -> String {
        let (left, top, right, bottom) = BOX;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = Scale::new(points().map(|p| p.0), left, right, 1.25);
        let y = Scale::new(points().flat_map(|p| [p.2, p.3]), bottom, top, 1.3);
        let mut out = String::new();
        // Writing to a String cannot fail.
        let mut line = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        let longest = self.lines.iter().map(|line| line.name.len()).max();
        let (width, height) = (right + 60.0 + 7.2 * longest.unwrap_or(0) as f64, HEIGHT);
        line(format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, sans-serif" font-size="12">"#
        ));
        line(format!(
            r#"<rect width="{width}" height="{height}" fill="white"/>"#
        ));
        let middle = (left + right) / 2.0;
        line(format!(
            r#"<text x="{middle}" y="26" text-anchor="middle" font-size="15">{}</text>"#,
            escape(self.title)
        ));
        for value in y.ticks() {
            let at = y.at(value);
            line(format!(
                r##"<path d="M{left} {at:.1}H{right}" stroke="#ddd"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"##,
                left - 8.0,
                at + 4.0,
                tick(value)
            ));
        }
        let mut places: Vec<f64> = points().map(|p| p.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        for place in places {
            let at = x.at(place);
            line(format!(
                r##"<path d="M{at:.1} {top}V{bottom}" stroke="#eee"/><text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"##,
                bottom + 18.0,
                escape(&(self.place)(place))
            ));
        }
        line(format!(
            r#"<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="black"/>"#
        ));
        line(format!(
            r#"<text x="{middle}" y="{:.1}" text-anchor="middle">{}</text>"#,
            bottom + 42.0,
            escape(self.x)
        ));
        line(format!(
            r#"<text transform="translate(18 {:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
            (top + bottom) / 2.0,
            escape(self.y)
        ));
        for (number, (series, colour)) in self.lines.iter().zip(COLOURS.iter().cycle()).enumerate()
        {
            let mut path = String::new();
            for (at, (place, value, min, max)) in series.points.iter().enumerate() {
                let (px, py) = (x.at(*place), y.at(*value));
                let _ = write!(path, "{}{px:.1} {py:.1}", if at == 0 { "M" } else { "L" });
                let (low, high) = (y.at(*min), y.at(*max));
                line(format!(
                    r#"<path d="M{px:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} {high:.1}h6" stroke="{colour}" opacity="0.6"/>"#,
                    px - 3.0,
                    px - 3.0
                ));
                line(mark(number, px, py, colour));
            }
            line(format!(
                r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>"#
            ));
        }
        self.legend(&mut line);
        line("</svg>".to_owned());
        out
    }

    /// The names of the lines, beside the drawing.
    fn legend(&self, line: &mut impl FnMut(String)) {
        let (_, top, right, _) = BOX;
        let series = self.lines.iter().zip(COLOURS.iter().cycle());
        for (number, (series, colour)) in series.enumerate() {
            let (x, y) = (right + 16.0, top + 12.0 + number as f64 * 20.0);
            line(format!(
                r#"<path d="M{x:.1} {y:.1}h22" stroke="{colour}" stroke-width="1.8"/><text x="{:.1}" y="{:.1}">{}</text>"#,
                x + 28.0,
                y + 4.0,
                escape(series.name)
            ));
            line(mark(number, x + 11.0, y, colour));
        }
    }
}

/// The mark of a point: each line has another one.
fn mark(number: usize, x: f64, y: f64, colour: &str) -> String {
    match number % 4 {
        0 => format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#),
        1 => format!(
            r#"<rect x="{:.1}" y="{:.1}" width="7" height="7" fill="{colour}"/>"#,
            x - 3.5,
            y - 3.5
        ),
        2 => format!(
            r#"<path d="M{:.1} {:.1}h9l-4.5 -8z" fill="{colour}"/>"#,
            x - 4.5,
            y + 4.0
        ),
        _ => format!(
            r#"<path d="M{x:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5z" fill="{colour}"/>"#,
            y - 4.5
        ),
    }
}
