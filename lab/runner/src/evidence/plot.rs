//! The plots: SVG as text, with a background of their own for light and dark pages.
#![expect(
    clippy::cast_precision_loss,
    reason = "a picture has fewer points than a double has digits"
)]

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{count, humanize, list, text_of};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const OK: &str = "#2f7d4f";
const FAILED: &str = "#b26a00";
const INDETERMINATE: &str = "#b3261e";
const NEW: &str = "#2f5f9e";
const REPLAY: &str = "#7a9fd0";
/// More points cannot be distinguished at this width.
const MAX_POINTS: usize = 300;

/// Answers per second over time, with the phases behind them.
pub(super) fn timeline(content: &Value) -> String {
    const TOP: f64 = 130.0;
    const HEIGHT: f64 = 420.0;
    const BOTTOM: f64 = HEIGHT - 40.0;
    // After the heal all keys are replayed at full speed, which would flatten the rest of the plot.
    let seconds = list(&content["timeline"]);
    let broken = seconds
        .iter()
        .take_while(|second| second["phase"] != "heal");
    let seconds = &seconds[..broken.count()];
    let total = seconds.len().max(1) as f64;
    let step = seconds.len().div_ceil(MAX_POINTS).max(1);
    let x = |second: f64| LEFT + second / total * (WIDTH - LEFT - RIGHT);
    let rates = |name: &str| -> Vec<f64> {
        let chunks = seconds.chunks(step);
        let rate = |chunk: &[Value]| {
            let sum: u64 = chunk
                .iter()
                .filter_map(|second| second[name].as_u64())
                .sum();
            sum as f64 / chunk.len() as f64
        };
        chunks.map(rate).collect()
    };
    let curves = [
        ("ok", OK),
        ("failed", FAILED),
        ("indeterminate", INDETERMINATE),
    ]
    .map(|(name, colour)| (colour, rates(name)));
    let highest = curves
        .iter()
        .flat_map(|(_, rates)| rates)
        .fold(1.0, |a, b| f64::max(a, *b));
    let top = round_up(highest);
    let y = |rate: f64| BOTTOM - rate / top * (BOTTOM - TOP);

    let mut svg = begin(HEIGHT, "Calls by how they ended, per second");
    for (number, (name, from, to)) in spells(seconds).iter().enumerate() {
        let (from, to) = (x(*from), x(*to));
        let fill = if number.is_multiple_of(2) {
            "#eef1f5"
        } else {
            "#dde3ea"
        };
        rect(&mut svg, (from, TOP), (to - from, BOTTOM - TOP), fill);
        let (at, above) = (f64::midpoint(from, to) + 4.0, TOP - 6.0);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{above}\" transform=\"rotate(-55 {at:.1} {above})\">{}</text>",
            escaped(&humanize(name))
        );
    }
    for quarter in 0..=4 {
        let rate = top * f64::from(quarter) / 4.0;
        line(&mut svg, (LEFT, y(rate)), (WIDTH - RIGHT, y(rate)));
        label(
            &mut svg,
            (LEFT - 6.0, y(rate) + 4.0),
            "end",
            &format!("{rate:.0}"),
        );
    }
    for (colour, rates) in &curves {
        let points = rates.iter().enumerate().map(|(index, rate)| {
            let middle = (index as f64 + 0.5) * step as f64;
            (x(middle.min(total)), y(*rate))
        });
        let points: Vec<_> = points.collect();
        polyline(&mut svg, colour, &points);
    }
    label(&mut svg, (LEFT, BOTTOM + 16.0), "middle", "0 s");
    label(
        &mut svg,
        (WIDTH - RIGHT, BOTTOM + 16.0),
        "end",
        &format!("{total:.0} s"),
    );
    let ends = [
        ("final answer", OK),
        ("certainly not executed", FAILED),
        ("indeterminate", INDETERMINATE),
    ];
    legend(&mut svg, BOTTOM + 28.0, &ends);
    svg + "</svg>\n"
}

/// Bars for each subject with rates, on a logarithmic scale.
pub(super) fn throughput(content: &Value) -> String {
    const NAMES: f64 = 350.0;
    const ROW: f64 = 34.0;
    const TOP: f64 = 40.0;
    let subjects = list(&content["subjects"]);
    let subjects: Vec<&Value> = subjects
        .iter()
        .filter(|one| one["new"].is_object())
        .collect();
    let bottom = TOP + ROW * subjects.len() as f64;
    let rate = |subject: &Value, kind: &str| subject[kind]["per_second"].as_f64().unwrap_or(0.0);
    let rates = subjects
        .iter()
        .flat_map(|one| [rate(one, "new"), rate(one, "replay")]);
    let decades = rates.fold(10.0, f64::max).log10().ceil();
    let room = WIDTH - NAMES - 80.0;
    // One a second is at the left edge; what is slower has no bar.
    let length = |rate: f64| rate.max(1.0).log10() / decades * room;

    let mut svg = begin(bottom + 50.0, "Requests per second, logarithmic");
    let mut decade = 0.0;
    while decade <= decades {
        let rate = 10_f64.powf(decade);
        let x = NAMES + length(rate);
        line(&mut svg, (x, TOP), (x, bottom));
        let shown = count(&Value::from(rate));
        label(
            &mut svg,
            (x, bottom + 16.0),
            "middle",
            &format!("{shown}/s"),
        );
        decade += 1.0;
    }
    for (number, subject) in subjects.iter().enumerate() {
        let y = TOP + ROW * number as f64;
        let name = format!(
            "{}, {}",
            text_of(&subject["name"]),
            text_of(&subject["store"])
        );
        let weight = if subject["ours"] == true {
            "bold"
        } else {
            "normal"
        };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" font-weight=\"{weight}\">{}</text>",
            NAMES - 8.0,
            y + 20.0,
            escaped(&name)
        );
        for (kind, colour, down) in [("new", NEW, 4.0), ("replay", REPLAY, 17.0)] {
            let rate = rate(subject, kind);
            rect(&mut svg, (NAMES, y + down), (length(rate), 12.0), colour);
            let shown = count(&subject[kind]["per_second"]);
            label(
                &mut svg,
                (NAMES + length(rate) + 5.0, y + down + 10.0),
                "start",
                &shown,
            );
        }
    }
    let kinds = [("new keys", NEW), ("replays", REPLAY)];
    legend(&mut svg, bottom + 32.0, &kinds);
    svg + "</svg>\n"
}

/// What callers reached together.
pub(super) struct Point {
    pub(super) callers: u32,
    pub(super) rate: f64,
    pub(super) p99: f64,
}

/// Throughput and p99 over the number of callers, both axes logarithmic, beside each other.
pub(super) fn callers(store: &str, series: &[(&str, Vec<Point>)], limit: f64) -> String {
    const HEIGHT: f64 = 360.0;
    let all = || series.iter().flat_map(|(_, points)| points);
    let most = all()
        .map(|point| f64::from(point.callers))
        .fold(2.0, f64::max);
    let mut svg = begin(
        HEIGHT,
        &format!("{store}: new operations per second, and their p99 in µs, by callers"),
    );
    for (left, is_rate) in [(LEFT, true), (550.0, false)] {
        let value = |point: &Point| if is_rate { point.rate } else { point.p99 };
        let values = || all().map(value).filter(|value| *value > 0.0);
        let top = values().fold(if is_rate { limit } else { 1.0 }, f64::max);
        let decades = (
            values()
                .fold(f64::INFINITY, f64::min)
                .min(top)
                .log10()
                .floor(),
            top.log10().ceil(),
        );
        let (right, bottom, upper) = (left + 390.0, HEIGHT - 70.0, 40.0);
        let x = |callers: u32| left + f64::from(callers).log2() / most.log2() * (right - left);
        let y = |value: f64| {
            let share = (value.max(1e-9).log10() - decades.0) / (decades.1 - decades.0).max(1.0);
            bottom - share * (bottom - upper)
        };
        let mut decade = decades.0;
        while decade <= decades.1 {
            let value = 10_f64.powf(decade);
            line(&mut svg, (left, y(value)), (right, y(value)));
            let shown = count(&Value::from(value));
            label(&mut svg, (left - 6.0, y(value) + 4.0), "end", &shown);
            decade += 1.0;
        }
        if let Some((_, points)) = series.first() {
            for Point { callers, .. } in points {
                let shown = callers.to_string();
                label(&mut svg, (x(*callers), bottom + 16.0), "middle", &shown);
            }
        }
        if is_rate && limit > 0.0 {
            let path = [(left, y(limit)), (right, y(limit))];
            polyline(&mut svg, INDETERMINATE, &path);
        }
        for ((_, points), colour) in series.iter().zip([NEW, FAILED]) {
            let path: Vec<_> = points
                .iter()
                .map(|point| (x(point.callers), y(value(point))))
                .collect();
            polyline(&mut svg, colour, &path);
        }
    }
    let names = series.iter().zip([NEW, FAILED]);
    let mut entries: Vec<_> = names.map(|((name, _), colour)| (*name, colour)).collect();
    entries.push(("limit", INDETERMINATE));
    legend(&mut svg, HEIGHT - 20.0, &entries);
    svg + "</svg>\n"
}

fn polyline(svg: &mut String, colour: &str, points: &[(f64, f64)]) {
    let points: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" points=\"{}\"/>",
        points.join(" ")
    );
}

/// The phases, each from and to a second.
fn spells(seconds: &[Value]) -> Vec<(&str, f64, f64)> {
    let mut spells: Vec<(&str, f64, f64)> = Vec::new();
    for (index, second) in seconds.iter().enumerate() {
        let (phase, end) = (text_of(&second["phase"]), index as f64 + 1.0);
        match spells.last_mut() {
            Some((name, _, to)) if *name == phase => *to = end,
            Some(_) | None => spells.push((phase, index as f64, end)),
        }
    }
    spells
}

/// Rounds up to one, two or five times a power of ten.
fn round_up(highest: f64) -> f64 {
    let decade = 10_f64.powf(highest.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    let found = steps.into_iter().find(|step| step * decade >= highest);
    found.unwrap_or(10.0) * decade
}

fn begin(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#1b1f24\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" rx=\"6\" \
         fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"22\" font-weight=\"bold\">{title}</text>\n",
    )
}

fn rect(svg: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{fill}\"/>"
    );
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#b8c0ca\" \
         stroke-width=\"0.6\"/>"
    );
}

fn label(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

fn legend(svg: &mut String, y: f64, entries: &[(&str, &str)]) {
    let mut x = LEFT + 60.0;
    for (name, colour) in entries {
        rect(svg, (x, y - 9.0), (10.0, 10.0), colour);
        label(svg, (x + 15.0, y), "start", name);
        x += 180.0;
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_scale_ends_at_a_round_number() {
        let ends = [1.0, 3.0, 9.9, 410.0, 1_000.0].map(round_up);
        assert_eq!(
            ends.map(|end| format!("{end}")),
            ["1", "4", "10", "500", "1000"]
        );
    }

    #[test]
    fn phases_are_shaded_and_named() {
        let seconds: Vec<Value> = (0..1_000)
            .map(|second| json!({ "second": second, "ok": 5, "phase": if second < 400 { "a" } else { "b_c" } }))
            .collect();
        let svg = timeline(&json!({ "timeline": seconds }));
        assert!(svg.contains(">a</text>"));
        assert!(svg.contains(">b c</text>"));
        let points = svg
            .split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        assert_eq!(points.split(' ').count(), 250);
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let subject = json!({ "name": "<a & \"b\">", "store": "s", "new": { "per_second": 100.0 },
            "replay": { "per_second": 0.2 } });
        let svg = throughput(&json!({ "subjects": [subject] }));
        assert!(svg.contains("&lt;a &amp; &quot;b&quot;&gt;, s"));
        assert!(!svg.contains("<a "));
    }
}
