//! Plots, as the text of an SVG image.

use plotters::coord::Shift;
use plotters::prelude::*;

use octavo_command::failure::Failure;

const WIDTH: u32 = 720;
const CURVES_HEIGHT: u32 = 480;
const BAR_HEIGHT: u32 = 22;
/// The height of the title and the axis.
const AROUND_BARS: u32 = 100;

/// The colors of series. The first three are those of the base, patched and best form.
const COLORS: [RGBColor; 8] = [
    RGBColor(200, 60, 60),
    RGBColor(60, 100, 200),
    RGBColor(40, 140, 80),
    RGBColor(150, 90, 170),
    RGBColor(210, 140, 30),
    RGBColor(30, 160, 170),
    RGBColor(120, 80, 40),
    RGBColor(90, 90, 90),
];

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Points with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// The axes of curves. Both are logarithmic.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    pub title: &'a str,
    pub right: &'a str,
    pub up: &'a str,
}

/// Draws a line for each series.
pub fn curves(axes: Axes<'_>, series: &[Series]) -> Result<String, Failure> {
    image(axes.title, CURVES_HEIGHT, |area| {
        let points = || series.iter().flat_map(|series| &series.points);
        let leftmost = points().map(|point| point.0).fold(f64::INFINITY, f64::min).min(f64::MAX);
        let rightmost = points().map(|point| point.0).fold(2.0 * leftmost, f64::max);
        let most = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
        let least = points().map(|point| point.1).fold(most, f64::min);
        let mut chart = ChartBuilder::on(area)
            .caption(axes.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(
                (leftmost..rightmost).log_scale().base(2.0),
                (least..most * 1.5).log_scale(),
            )?;
        chart.configure_mesh().x_desc(axes.right).y_desc(axes.up).draw()?;
        for (series, color) in series.iter().zip(COLORS.iter().cycle()) {
            let line = LineSeries::new(series.points.iter().copied(), color.stroke_width(2));
            chart
                .draw_series(line.point_size(3))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
        Ok(())
    })
}

/// A group of bars, one for each value. Values may be below zero.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    pub name: String,
    /// The values in the order of the bars' names, `None` if there is no value.
    pub values: Vec<Option<f64>>,
}

/// Draws horizontal bars, one group below the other. `names` are the names of the bars in a group.
pub fn bars(title: &str, unit: &str, names: &[&str], groups: &[BarGroup]) -> Result<String, Failure> {
    // A row for each bar, an empty one between groups, and room for the names of the colors.
    let step = names.len() + 1;
    let rows = (step * groups.len() + names.len()) as i32;
    image(title, AROUND_BARS + rows as u32 * BAR_HEIGHT, |area| {
        let values = || groups.iter().flat_map(|group| group.values.iter().flatten().copied());
        let (least, most) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
        let room = 0.12 * (most - least).max(f64::MIN_POSITIVE);
        let from = if least < 0.0 { least - room } else { 0.0 };
        // Rows count from below, and groups from above.
        let row = |group: usize, place: usize| rows - 1 - (group * step + place) as i32;
        let name_of = |at: &i32| {
            let of_group = |group: &usize| row(*group, names.len().saturating_sub(1) / 2) == *at;
            (0..groups.len()).find(of_group).map_or(String::new(), |group| groups[group].name.clone())
        };
        let longest = groups.iter().map(|group| group.name.chars().count()).max().unwrap_or(0) as u32;
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(24 + 7 * longest.min(40))
            .build_cartesian_2d(from..most + room, 0..rows)?;
        let labels = rows as usize + 1;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_desc(unit)
            .y_labels(labels)
            .y_label_formatter(&name_of)
            .draw()?;
        for (place, (name, color)) in names.iter().zip(COLORS.iter().cycle()).enumerate() {
            let of_place: Vec<_> = groups
                .iter()
                .enumerate()
                .filter_map(|(group, of)| Some((row(group, place), of.values.get(place).copied()??)))
                .collect();
            let bar = |&(row, value): &(i32, f64)| {
                let mut bar = Rectangle::new([(0.0, row), (value, row + 1)], color.filled());
                bar.set_margin(2, 2, 0, 0);
                bar
            };
            chart
                .draw_series(of_place.iter().map(bar))?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 20, y + 5)], color.filled()));
            let number = |&(row, value): &(i32, f64)| {
                Text::new(format!(" {}", shown(value)), (value.max(0.0), row + 1), ("sans-serif", 15))
            };
            chart.draw_series(of_place.iter().map(number))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
        Ok(())
    })
}

fn shown(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

fn image(
    title: &str,
    height: u32,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn,
) -> Result<String, Failure> {
    let mut text = String::new();
    let drawn = (|| {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
        Ok(())
    })();
    drawn
        .map(|()| text)
        .map_err(|error: Box<dyn std::error::Error>| Failure::Said(format!("cannot draw {title}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_an_image(image: &str) {
        assert!(image.starts_with("<svg") && image.trim_end().ends_with("</svg>"), "{image}");
    }

    #[test]
    fn curves_have_a_line_for_each_series() {
        let series = |name: &str, rate: f64| Series {
            name: name.into(),
            points: vec![(1.0, rate), (2.0, 2.0 * rate), (128.0, 90.0 * rate)],
        };
        let axes = Axes { title: "pins, simulated", right: "CPUs", up: "operations a second" };
        let image = curves(axes, &[series("base", 1e6), series("<best>", 2e6)]).unwrap();
        is_an_image(&image);
        assert!(
            image.contains("base") && image.contains("&lt;best&gt;") && image.contains("pins, simulated")
        );
        assert!(image.matches("<polyline").count() >= 2, "{image}");
    }

    #[test]
    fn bars_stand_for_values_and_nothing_stands_for_none() {
        let group = |name: &str, values| BarGroup { name: name.into(), values };
        let groups =
            [group("send-64", vec![Some(1.85), Some(-0.4)]), group("send-128", vec![Some(3.96), None])];
        let image = bars("change", "percent", &["published", "simulated"], &groups).unwrap();
        is_an_image(&image);
        for text in ["send-64", "send-128", "published", "simulated", "1.85", "-0.40", "3.96", "percent"] {
            assert!(image.contains(text), "{text}: {image}");
        }
        is_an_image(&bars("nothing", "s", &["a"], &[group("g", vec![None])]).unwrap());
    }
}
