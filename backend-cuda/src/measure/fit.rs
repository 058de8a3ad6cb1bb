//! A line through times by size that a few wrong times do not change.

/// The time of one copy: a fixed time, and the bytes divided by a speed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// The fixed time of each copy, whatever its size.
    pub latency_ns: f64,
    /// The speed for the bytes of a copy.
    pub bytes_per_s: f64,
}

impl Link {
    /// The line through points of bytes and nanoseconds: the median of the slopes of all pairs, and
    /// the median of the rest of each time (Theil 1950; Sen 1968). A slope is weighted by the root
    /// of the distance between its sizes, since small copies show only the latency. `None` without
    /// two sizes, or if larger copies take no longer. O(points² log points).
    pub(crate) fn fit(points: &[(u64, f64)]) -> Option<Self> {
        let pairs = points.iter().enumerate().flat_map(|(at, one)| {
            points[at + 1..].iter().filter(|other| other.0 != one.0).map(move |other| {
                let apart = other.0 as f64 - one.0 as f64;
                ((other.1 - one.1) / apart, apart.abs().sqrt())
            })
        });
        let ns_per_byte = weighted_median(pairs.collect())?;
        let rest = |&(bytes, ns): &(u64, f64)| ns - ns_per_byte * bytes as f64;
        let latency_ns = median(points.iter().map(rest))?.max(0.0);
        (ns_per_byte > 0.0).then_some(Self { latency_ns, bytes_per_s: 1e9 / ns_per_byte })
    }

    /// The predicted time of a copy.
    #[must_use]
    pub fn copy_ns(&self, bytes: u64) -> f64 {
        self.latency_ns + bytes as f64 * 1e9 / self.bytes_per_s
    }
}

/// The median of some numbers.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    weighted_median(numbers.into_iter().map(|number| (number, 1.0)).collect())
}

/// The least number up to which half of the total weight lies.
fn weighted_median(mut numbers: Vec<(f64, f64)>) -> Option<f64> {
    numbers.sort_by(|one, other| one.0.total_cmp(&other.0));
    let half = numbers.iter().map(|&(_, weight)| weight).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let reaches_half = |&&(_, weight): &&(f64, f64)| {
        sum += weight;
        sum >= half
    };
    numbers.iter().find(reaches_half).map(|&(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::copies::SIZES;

    /// Checks the fit to times on a link of 10 GB/s and 7 µs, with an error for each size.
    fn check(error: impl Fn(usize) -> f64, tolerance: f64) {
        let ns = |bytes: u64| 7000.0 + bytes as f64 / 10.0;
        let points: Vec<_> =
            (0..).zip(SIZES).map(|(at, bytes)| (bytes, ns(bytes) * error(at))).collect();
        let link = Link::fit(&points).unwrap();
        assert!((link.latency_ns / 7000.0 - 1.0).abs() <= tolerance, "{link:?}");
        assert!((link.bytes_per_s / 1e10 - 1.0).abs() <= tolerance, "{link:?}");
        let exact = ns(4 << 20);
        assert!((link.copy_ns(4 << 20) / exact - 1.0).abs() <= tolerance, "{link:?}");
    }

    #[test]
    fn a_link_is_found_from_its_times() {
        check(|_| 1.0, 1e-6);
    }

    #[test]
    fn one_time_that_is_wrong_changes_nothing() {
        for wrong in 0..SIZES.len() {
            for by in [0.5, 3.0] {
                check(|at| if at == wrong { by } else { 1.0 }, 1e-6);
            }
        }
    }

    #[test]
    fn noise_in_proportion_is_evened_out() {
        check(|at| if at % 2 == 0 { 1.01 } else { 0.99 }, 0.05);
    }

    #[test]
    fn what_no_line_goes_through_has_no_fit() {
        assert_eq!(Link::fit(&[]), None);
        assert_eq!(Link::fit(&[(4096, 1.0), (4096, 2.0)]), None);
        assert_eq!(Link::fit(&[(4096, 2.0), (8192, 1.0)]), None);
    }

    #[test]
    fn medians_are_of_weight() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(weighted_median(vec![(1.0, 1.0), (2.0, 1.0), (9.0, 3.0)]), Some(9.0));
        assert_eq!(median([]), None);
    }
}
