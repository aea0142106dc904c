//! Turned and sheared pictures: every pixel of the output asks where it comes from.
//!
//! The way back is an affine map of pixel middles, as torchvision's on tensors: the map is made in
//! doubles, rounded to singles, and applied in singles with the picture's middle as the origin and
//! half its edges as the unit. The same steps in the same order give the same places to the bit, which
//! matters where a place lies right between two pixels. The sines are not the system's, which differ
//! between machines.

use forebay_plan::Interpolation;

use super::blur::rounded;
use super::geometry::{Fill, Size};

/// An affine map from the output's pixels to where they come from, and what is read there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Warp {
    /// Rows of the matrix, from (x, y, 1) of the output to x and to y of the picture.
    pub matrix: [[f32; 3]; 2],
    /// Size of the output.
    pub to: Size,
    pub interpolation: Interpolation,
    /// What lies outside. Without it, that is 0, and bilinear values at the border are blended with
    /// it once; with it, they are blended twice, as torchvision does.
    pub fill: Option<Fill>,
}

/// The way back of a rotation by `degrees`, counter-clockwise around `center`, which is seen from the
/// picture's middle.
pub(super) fn rotation(degrees: f64, center: [f64; 2]) -> [[f32; 3]; 2] {
    affine(-degrees, [0.0; 2], 1.0, [0.0; 2], center)
}

/// The way back of a shear along x and y, a scaling, a rotation by `degrees` clockwise around `center`,
/// and a shift, in this order.
pub(super) fn affine(
    degrees: f64,
    [tx, ty]: [f64; 2],
    scale: f64,
    shear: [f64; 2],
    [cx, cy]: [f64; 2],
) -> [[f32; 3]; 2] {
    let angle = degrees.to_radians();
    let [sx, sy] = shear.map(f64::to_radians);
    // The way there is rotation times shear along y times shear along x; its determinant is 1.
    let tan = libm::tan(sx);
    let (a, c) = (libm::cos(angle - sy) / libm::cos(sy), libm::sin(angle - sy) / libm::cos(sy));
    let (b, d) = (-(a * tan + libm::sin(angle)), libm::cos(angle) - c * tan);
    let [a, b, c, d] = [d / scale, -b / scale, -c / scale, a / scale];
    let shift = [cx - a * (cx + tx) - b * (cy + ty), cy - c * (cx + tx) - d * (cy + ty)];
    [[a, b, shift[0]], [c, d, shift[1]]].map(|row| row.map(|v| v as f32))
}

/// The way back of a shear by these factors, with the upper left corner in its place.
pub(super) fn shear([h, w]: Size, along_x: f64, along_y: f64) -> [[f32; 3]; 2] {
    let shift = [along_x * 0.5 * f64::from(h), along_y * 0.5 * f64::from(w)];
    [[1.0, along_x, shift[0]], [along_y, 1.0, shift[1]]].map(|row| row.map(|v| v as f32))
}

/// The size that holds the whole turned picture, as torchvision reckons it: in singles, with
/// distances of less than 1/10,000 taken for rounding.
pub(super) fn expanded([h, w]: Size, matrix: &[[f32; 3]; 2]) -> Size {
    let (half_w, half_h) = (0.5 * w as f32, 0.5 * h as f32);
    let along = |[a, b, shift]: [f32; 3], half: f32| {
        let corners = [(-1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (1.0, -1.0)];
        let at = corners.map(|(x, y)| x * half_w * a + y * half_h * b + shift + half);
        let whole = |v: f32| f64::from((v * 10_000.0).trunc() * 1e-4);
        let high = at.into_iter().fold(f32::MIN, f32::max);
        let low = at.into_iter().fold(f32::MAX, f32::min);
        // At least one pixel: a picture of one does not vanish.
        (whole(high).ceil() - whole(low).floor()).max(1.0) as u32
    };
    let [x, y] = *matrix;
    [along(y, half_h), along(x, half_w)]
}

/// Reads `from` by the map into `to`, which has exactly the output's bytes.
pub(super) fn apply(
    warp: &Warp,
    from: &[u8],
    size: Size,
    channels: usize,
    columns: &mut Vec<f32>,
    to: &mut [u8],
) {
    match channels {
        1 => apply_n::<1>(warp, from, size, columns, to),
        3 => apply_n::<3>(warp, from, size, columns, to),
        4 => apply_n::<4>(warp, from, size, columns, to),
        // Decoders leave 1, 3 or 4 once modes are converted.
        _ => {}
    }
}

fn apply_n<const C: usize>(
    warp: &Warp,
    from: &[u8],
    [h, w]: Size,
    columns: &mut Vec<f32>,
    to: &mut [u8],
) {
    let Warp { matrix, to: [to_h, to_w], interpolation, fill } = *warp;
    let (half_w, half_h) = (0.5 * w as f32, 0.5 * h as f32);
    let [x, y] = matrix;
    let [ax, bx, cx] = x.map(|v| v / half_w);
    let [ay, by, cy] = y.map(|v| v / half_h);
    let middle = |n: u32, i: u32| i as f32 - 0.5 * (n - 1) as f32;
    columns.clear();
    columns.extend((0..to_w).flat_map(|i| {
        let v = middle(to_w, i);
        [v * ax, v * ay]
    }));
    let source = Source::<C> { pixels: from.as_chunks::<C>().0, w: w as usize, size: [h, w] };
    let fill_of =
        |fill: Fill| -> [u8; C] { std::array::from_fn(|c| fill.get(c).copied().unwrap_or(0)) };
    let outside = fill.map(fill_of);
    let rows = to.chunks_exact_mut((to_w as usize * C).max(1));
    for (j, row) in (0..to_h).zip(rows) {
        let v = middle(to_h, j);
        let (rx, ry) = (v * bx, v * by);
        let places = columns.as_chunks::<2>().0.iter().map(|[x, y]| {
            let x = ((rx + x) + cx + 1.0) * half_w - 0.5;
            let y = ((ry + y) + cy + 1.0) * half_h - 0.5;
            (x, y)
        });
        let row = row.as_chunks_mut::<C>().0.iter_mut();
        if interpolation == Interpolation::Nearest {
            let outside = outside.unwrap_or([0; C]);
            row.zip(places).for_each(|(out, at)| *out = source.nearest(at).unwrap_or(outside));
        } else {
            row.zip(places).for_each(|(out, at)| *out = source.bilinear(at, outside));
        }
    }
}

struct Source<'a, const C: usize> {
    pixels: &'a [[u8; C]],
    w: usize,
    size: Size,
}

impl<const C: usize> Source<'_, C> {
    /// The pixel at the nearest whole place, halves to even.
    #[inline(always)]
    fn nearest(&self, (x, y): (f32, f32)) -> Option<[u8; C]> {
        let [h, w] = self.size;
        // A rounded -0.4 is -0, which is 0.
        let (x, y) = (rounded(x), rounded(y));
        let inside = x >= 0.0 && x < w as f32 && y >= 0.0 && y < h as f32;
        if !inside {
            return None;
        }
        self.pixels.get(y as usize * self.w + x as usize).copied()
    }

    #[inline(always)]
    fn bilinear(&self, (x, y): (f32, f32), outside: Option<[u8; C]>) -> [u8; C] {
        let [h, w] = self.size;
        if !(x > -1.0 && x < w as f32 && y > -1.0 && y < h as f32) {
            return outside.unwrap_or([0; C]);
        }
        let floor = |v: f32| {
            let whole = v as i32;
            if (whole as f32) > v { whole - 1 } else { whole }
        };
        let (x0, y0) = (floor(x), floor(y));
        let (right, below) = (x - x0 as f32, y - y0 as f32);
        let (left, above) = (1.0 - right, 1.0 - below);
        let mut sum = [0.0; C];
        let mut seen = 0.0;
        for (dx, dy, weight) in [
            (0, 0, left * above),
            (1, 0, right * above),
            (0, 1, left * below),
            (1, 1, right * below),
        ] {
            let (x, y) = (x0 + dx, y0 + dy);
            // Negative numbers become too large ones.
            if (x as u32) < w && (y as u32) < h {
                let at = y as usize * self.w + x as usize;
                let pixel = self.pixels.get(at).copied().unwrap_or([0; C]);
                for (sum, v) in sum.iter_mut().zip(pixel) {
                    *sum += f32::from(v) * weight;
                }
                seen += weight;
            }
        }
        let mut out = [0; C];
        for (c, (out, v)) in out.iter_mut().zip(sum).enumerate() {
            let v = match outside.and_then(|fill| fill.get(c).copied()) {
                Some(fill) => (v - f32::from(fill)) * seen + f32::from(fill),
                None => v,
            };
            *out = rounded(v.clamp(0.0, 255.0)) as u8;
        }
        out
    }
}

/// Rows become columns. `to` has exactly the bytes of the picture.
pub(super) fn transpose(from: &[u8], [h, w]: Size, channels: usize, to: &mut [u8]) {
    let row = (h as usize * channels).max(1);
    for (x, out) in (0..w as usize).zip(to.chunks_exact_mut(row)) {
        for (y, out) in (0..h as usize).zip(out.chunks_exact_mut(channels)) {
            let start = (y * w as usize + x) * channels;
            if let Some(pixel) = from.get(start..start + channels) {
                out.copy_from_slice(pixel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(degrees: f64, size: Size, pixels: &[u8], interpolation: Interpolation) -> Vec<u8> {
        let matrix = rotation(degrees, [0.0, 0.0]);
        let warp = Warp { matrix, to: size, interpolation, fill: Some([9; 4]) };
        let mut out = vec![0; pixels.len()];
        apply(&warp, pixels, size, 1, &mut Vec::new(), &mut out);
        out
    }

    #[test]
    fn a_turn_of_nothing_and_of_a_quarter() {
        let pixels: Vec<u8> = (10..19).collect();
        for how in [Interpolation::Nearest, Interpolation::Bilinear] {
            assert_eq!(turned(0.0, [3, 3], &pixels, how), pixels);
            let quarter = [12, 15, 18, 11, 14, 17, 10, 13, 16];
            assert_eq!(turned(90.0, [3, 3], &pixels, how), quarter);
            assert_eq!(turned(30.0, [1, 1], &[77], how), [77]);
        }
    }

    #[test]
    fn what_lies_outside() {
        let matrix = shear([1, 4], 0.0, 0.0);
        let mut warp =
            Warp { matrix, to: [1, 4], interpolation: Interpolation::Bilinear, fill: None };
        warp.matrix[0][2] = 0.5; // Half a pixel to the left.
        let mut out = [0; 4];
        apply(&warp, &[100; 4], [1, 4], 1, &mut Vec::new(), &mut out);
        assert_eq!(out, [100, 100, 100, 50]);
        // A fill of 0 is blended twice.
        warp.fill = Some([0; 4]);
        apply(&warp, &[100; 4], [1, 4], 1, &mut Vec::new(), &mut out);
        assert_eq!(out, [100, 100, 100, 25]);
    }

    /// Against torchvision 0.29.2, `rotate(..., expand=True)`.
    #[test]
    fn sizes_that_hold_the_turned_picture() {
        let size = |degrees, size| expanded(size, &rotation(degrees, [0.0, 0.0]));
        assert_eq!(size(45.0, [100, 100]), [142, 142]);
        assert_eq!(size(30.0, [375, 500]), [575, 622]);
        assert_eq!(size(33.3, [31, 17]), [37, 33]);
        assert_eq!(size(90.0, [3, 5]), [5, 3]);
        assert_eq!(size(10.0, [1, 1]), [3, 3]);
    }

    #[test]
    fn transposed() {
        let mut out = [0; 6];
        transpose(&[1, 2, 3, 4, 5, 6], [2, 3], 1, &mut out);
        assert_eq!(out, [1, 4, 2, 5, 3, 6]);
    }
}
