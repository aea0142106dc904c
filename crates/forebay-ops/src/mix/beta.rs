//! Numbers of a Beta distribution whose two parameters are the same.

use forebay_core::Draws;

/// A number from 0 to 1 of Beta(alpha, alpha), for any alpha above 0. Two uniform numbers, none
/// rejected: that of the radius, and that of the angle.
///
/// A number t of Student's distribution with ν degrees of freedom is √(ν (u^(-2/ν) - 1)) cos 2πv
/// (R. W. Bailey, "Polar generation of random variates with the t-distribution", Mathematics of
/// Computation 62, 1994), and ½ + ½ t / √(ν + t²) is one of Beta(ν/2, ν/2) (L. Devroye, "Non-Uniform
/// Random Variate Generation", 1986, IX.3). ν cancels out.
pub fn symmetric(draws: &mut Draws, alpha: f64) -> f64 {
    // In (0, 1], for the logarithm.
    let u = 1.0 - draws.uniform();
    let cos = libm::cos(std::f64::consts::TAU * draws.uniform());
    // u^(-1/alpha) - 1, exact also where alpha is large; infinite where it is tiny.
    let radius = libm::expm1(-libm::log(u) / alpha);
    let t = cos / (cos * cos + 1.0 / radius).sqrt();
    if t.is_nan() { 0.5 } else { 0.5 + 0.5 * t }
}
