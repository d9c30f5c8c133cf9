//! Schedules of pipelines: cron expressions in a time zone.
//!
//! A tick is an instant of store time, the same on every server. The request id of its trigger is
//! derived from the tick, so that two servers create one run.

use croner::Cron;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use tenure_config::report::Report;
use tenure_config::section::Section;
use tenure_core::Millis;

/// A cron expression in a time zone.
#[derive(Clone, Debug)]
pub struct Schedule {
    cron: Cron,
    zone: TimeZone,
    text: String,
}

/// Compares the text.
impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Schedule {
    /// Parses an expression with five fields, or with six with seconds first, and the name of a
    /// zone.
    pub fn parse(cron: &str, zone: &str) -> Result<Self, String> {
        let text = format!("{cron} {zone}");
        let cron = cron.parse::<Cron>().map_err(|error| {
            format!("{cron:?} is not a cron expression such as \"30 2 * * *\": {error}")
        })?;
        let unknown =
            |_| format!("{zone:?} is not a time zone such as \"Europe/Berlin\" or \"UTC\"");
        let zone = TimeZone::get(zone).map_err(unknown)?;
        Ok(Self { cron, zone, text })
    }

    /// Returns the expression and the zone for display.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the first tick after an instant.
    #[must_use]
    pub fn next(&self, after: Millis) -> Option<Millis> {
        let tick = self.cron.find_next_occurrence(&self.to_zoned(after)?, false).ok()?;
        to_millis(&tick)
    }

    /// Returns the last tick up to an instant, inclusive.
    #[must_use]
    pub fn last(&self, until: Millis) -> Option<Millis> {
        let tick = self.cron.find_previous_occurrence(&self.to_zoned(until)?, true).ok()?;
        to_millis(&tick)
    }

    fn to_zoned(&self, instant: Millis) -> Option<Zoned> {
        let ms = i64::try_from(instant.0).ok()?;
        Some(Timestamp::from_millisecond(ms).ok()?.to_zoned(self.zone.clone()))
    }
}

fn to_millis(at: &Zoned) -> Option<Millis> {
    // Ticks are whole seconds; the fraction comes from the given instant.
    let seconds = u64::try_from(at.timestamp().as_second()).ok()?;
    Some(Millis(seconds * 1_000))
}

/// Reads `schedule`: a table with `cron` and `zone`.
pub(super) fn read(root: &Section<'_>, report: &mut Report<'_>) -> Option<Schedule> {
    if !root.has("schedule") {
        return None;
    }
    let section = root.section("schedule", report)?;
    section.check_keys(&["cron", "zone"], report);
    let cron = section.text("cron", report);
    if !section.has("cron") {
        report.add(&section.place, "`cron` is missing");
    }
    let zone = section.text("zone", report).unwrap_or("UTC");
    match Schedule::parse(cron?, zone) {
        Ok(schedule) if schedule.next(Millis(0)).is_some() => Some(schedule),
        Ok(_) => section.reject("cron", "it never occurs".to_owned(), report),
        Err(why) => {
            let key = if why.contains("time zone") { "zone" } else { "cron" };
            section.reject(key, why, report)
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_wire::{instant, parse_instant};

    use super::*;

    fn at(text: &str) -> Millis {
        parse_instant(text).unwrap()
    }

    #[test]
    fn ticks_follow_the_zone_across_clock_changes() {
        let daily = Schedule::parse("30 2 * * *", "Europe/Berlin").unwrap();
        let next = |text: &str| instant(daily.next(at(text)).unwrap());
        assert_eq!(next("2026-01-10T00:00:00Z"), "2026-01-10T01:30:00Z");
        assert_eq!(next("2026-07-10T00:00:00Z"), "2026-07-10T00:30:00Z");
        // 02:30 does not exist on the day on which clocks go forward: it still runs once.
        let spring = next("2026-03-29T00:00:00Z");
        assert!(spring.starts_with("2026-03-29T01:"), "{spring}");
        assert_eq!(next("2026-03-29T02:00:00Z"), "2026-03-30T00:30:00Z");
        // It occurs twice on the day on which they go back: it runs once.
        let autumn = at(&next("2026-10-24T12:00:00Z"));
        assert_eq!(instant(daily.next(autumn).unwrap()), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn last_tick_is_stable_until_the_next_one() {
        let hourly = Schedule::parse("0 * * * *", "UTC").unwrap();
        let tick = at("2026-01-10T05:00:00Z");
        for now in ["2026-01-10T05:00:00Z", "2026-01-10T05:00:00.400Z", "2026-01-10T05:59:59.999Z"]
        {
            assert_eq!(hourly.last(at(now)), Some(tick), "{now}");
        }
        assert_eq!(hourly.next(tick), Some(at("2026-01-10T06:00:00Z")));
    }

    #[test]
    fn invalid_schedule_is_rejected() {
        assert!(Schedule::parse("61 * * * *", "UTC").unwrap_err().contains("cron expression"));
        assert!(Schedule::parse("1 * * * *", "Mars").unwrap_err().contains("time zone"));
    }
}
