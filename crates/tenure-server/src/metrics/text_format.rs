//! The text format 0.0.4 of Prometheus, which older clients read.

use std::collections::HashSet;

/// Converts the OpenMetrics text format. The formats differ in comments: a counter is described
/// with its suffix `_total`, and there are no units and no end marker.
pub(crate) fn to_prometheus_text(open_metrics: &str) -> String {
    let counters: HashSet<&str> = open_metrics.lines().filter_map(counter_name).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let described = ["# HELP ", "# TYPE "].iter().find_map(|comment| {
            let (name, rest) = line.strip_prefix(comment)?.split_once(' ')?;
            Some((*comment, name, rest)).filter(|(_, name, _)| counters.contains(name))
        });
        match described {
            Some((comment, name, rest)) => {
                text.extend([comment, name, "_total ", rest]);
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Returns the name in the line that declares the type of a counter.
fn counter_name(line: &str) -> Option<&str> {
    line.strip_prefix("# TYPE ")?.strip_suffix(" counter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_converted() {
        let open_metrics = "# HELP a_lost Lost.\n# TYPE a_lost counter\na_lost_total{x=\"1\"} 2\n\
                            # HELP a_wait_seconds Wait.\n# TYPE a_wait_seconds histogram\n\
                            # UNIT a_wait_seconds seconds\na_wait_seconds_sum 0.5\n# EOF\n";
        let expected = "# HELP a_lost_total Lost.\n# TYPE a_lost_total counter\n\
                        a_lost_total{x=\"1\"} 2\n# HELP a_wait_seconds Wait.\n\
                        # TYPE a_wait_seconds histogram\na_wait_seconds_sum 0.5\n";
        assert_eq!(to_prometheus_text(open_metrics), expected);
    }
}
