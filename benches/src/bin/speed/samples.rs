//! What was measured: figures by measure, way and size, each with all its passes, and what could not be measured.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde_json::{Value, json};

/// What is the same for all values of a series: the measure that they belong to, what was measured, and its size or number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The measure, by its name in [`crate::measures::ALL`].
    pub measure: String,
    /// What was measured, such as `WRITE` or `memcpy`.
    pub way: String,
    /// The place on the axis of the measure.
    pub x: u64,
}

/// All values, by pass: those of one pass were taken right after one another, so that their ratios mean something.
#[derive(Debug, Default)]
pub struct Samples {
    values: BTreeMap<Key, BTreeMap<u32, f64>>,
    /// What could not be measured, and why.
    pub skips: BTreeMap<String, String>,
    /// The pass under way, counted through all rounds.
    pub pass: u32,
}

/// The middle, the smallest and the largest of some values.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let half = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[half],
            _ => (values[half - 1] + values[half]) / 2.0,
        };
        Some(Spread { median, min, max })
    }
}

impl Samples {
    /// Notes one value of the pass under way.
    pub fn note(&mut self, measure: &str, way: &str, x: u64, value: f64) {
        let (measure, way) = (measure.to_owned(), way.to_owned());
        let series = self.values.entry(Key { measure, way, x }).or_default();
        series.insert(self.pass, value);
    }

    /// Notes what could not be measured; says so, the first time.
    pub fn skip(&mut self, name: &str, reason: impl std::fmt::Display) {
        let reason = reason.to_string().replace('\n', " ");
        if !self.skips.contains_key(name) {
            println!("SKIP {name}: {reason}");
            self.skips.insert(name.to_owned(), reason);
        }
    }

    /// Takes in what another process has noted.
    pub fn take_in(&mut self, other: Samples) {
        for (key, values) in other.values {
            self.values.entry(key).or_default().extend(values);
        }
        self.skips.extend(other.skips);
    }

    /// The ways of a measure, in the order of their names.
    pub fn ways(&self, measure: &str) -> Vec<&str> {
        let mut ways: Vec<&str> = Vec::new();
        for key in self.values.keys().filter(|key| key.measure == measure) {
            if !ways.contains(&&*key.way) {
                ways.push(&key.way);
            }
        }
        ways
    }

    /// The places on the axis of a measure at which there is a value, in order.
    pub fn places(&self, measure: &str) -> Vec<u64> {
        let of_it = self.values.keys().filter(|key| key.measure == measure);
        let places: std::collections::BTreeSet<u64> = of_it.map(|key| key.x).collect();
        places.into_iter().collect()
    }

    fn series(&self, measure: &str, way: &str, x: u64) -> Option<&BTreeMap<u32, f64>> {
        let (measure, way) = (measure.to_owned(), way.to_owned());
        self.values.get(&Key { measure, way, x })
    }

    /// The spread of a series.
    pub fn spread(&self, measure: &str, way: &str, x: u64) -> Option<Spread> {
        Spread::of(self.series(measure, way, x)?.values().copied().collect())
    }

    /// The spread of the ratios of one way to another, pass by pass.
    pub fn ratio(&self, measure: &str, way: &str, to: &str, x: u64) -> Option<Spread> {
        let (a, b) = (self.series(measure, way, x)?, self.series(measure, to, x)?);
        let ratios = a.iter().filter_map(|(pass, a)| Some(a / b.get(pass)?));
        Spread::of(ratios.collect())
    }

    /// The values as JSON.
    pub fn to_json(&self) -> Value {
        let series = self.values.iter().map(|(key, values)| {
            json!({
                "measure": key.measure, "way": key.way, "x": key.x,
                "passes": values.keys().collect::<Vec<_>>(),
                "values": values.values().collect::<Vec<_>>(),
            })
        });
        json!({ "series": series.collect::<Vec<_>>(), "skips": self.skips })
    }

    /// The values of a document that [`Samples::to_json`] has made.
    ///
    /// # Errors
    /// It is none.
    pub fn from_json(document: &Value) -> Result<Samples, Box<dyn Error>> {
        let mut samples = Samples::default();
        let list = |value: &Value, name: &str| {
            let found = value[name].as_array().cloned();
            found.ok_or(format!("no list of {name}"))
        };
        for series in list(document, "series")? {
            let text = |name: &str| {
                series[name]
                    .as_str()
                    .ok_or(format!("a series has no {name}"))
            };
            let x = series["x"].as_u64().ok_or("a series has no x")?;
            let passes = list(&series, "passes")?;
            for (pass, value) in passes.iter().zip(list(&series, "values")?) {
                samples.pass = u32::try_from(pass.as_u64().ok_or("a pass is no number")?)?;
                let value = value.as_f64().ok_or("a value is no number")?;
                samples.note(text("measure")?, text("way")?, x, value);
            }
        }
        for (name, reason) in document["skips"].as_object().into_iter().flatten() {
            let reason = reason.as_str().unwrap_or_default().to_owned();
            samples.skips.insert(name.clone(), reason);
        }
        Ok(samples)
    }

    /// Reads a file of results: the values, and the whole document.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read(path: &Path) -> Result<(Samples, Value), Box<dyn Error>> {
        let document: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        Ok((Samples::from_json(&document)?, document))
    }
}
