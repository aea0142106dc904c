//! Images per second on one thread: libjpeg-turbo alone, and whole chains, over the photographs.
//!
//! `cargo bench -p forebay-ops` (or the built binary), with `FOREBAY_TEST_DATA` where the data are
//! elsewhere than `../shared/data`. A word after `--` picks the cases that have it. Every case is measured in each of eleven rounds, one after the
//! other, and the median is printed. The clock is the thread's CPU time, so that a busy machine
//! changes little. The share is of the full decode in the same run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::time::{Duration, Instant};

use forebay_core::{DType, Layout, RowKey};
use forebay_ops::{ImagePipeline, Scratch};
use forebay_plan::{ImageMode, ImageOp, Interpolation, MapImage, Quality};
use turbojpeg_sys as tj;

const ROUNDS: usize = 11;
const CASE_TIME: Duration = Duration::from_millis(400);

/// What is measured: one picture at a time, by its number and bytes.
type Work = Box<dyn FnMut(usize, &[u8])>;
type Case = (&'static str, Work);

fn main() {
    let root = std::env::var_os("FOREBAY_TEST_DATA").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        std::path::PathBuf::from,
    );
    let Ok(entries) = std::fs::read_dir(root.join("photos")) else {
        println!("skipped: {} is not there", root.join("photos").display());
        return;
    };
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    let files: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();

    let mut cases: Vec<Case> = vec![
        ("full decode, nothing else", Box::new(full_decode())),
        ("region decode, nothing else", Box::new(region_decode())),
    ];
    let norm =
        ImageOp::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
    let rrc = ImageOp::RandomResizedCrop {
        size: [224, 224],
        scale: [0.08, 1.0],
        ratio: [3.0 / 4.0, 4.0 / 3.0],
        interpolation: Interpolation::Bilinear,
        antialias: true,
    };
    let train = vec![rrc, ImageOp::RandomHorizontalFlip { p: 0.5 }];
    let resize = ImageOp::Resize {
        size: vec![256],
        interpolation: Interpolation::Bilinear,
        max_size: None,
        antialias: true,
    };
    let eval = vec![resize, ImageOp::CenterCrop { size: [224, 224] }];
    let with = |mut ops: Vec<ImageOp>| {
        ops.push(norm.clone());
        ops
    };
    let (f32, f16, u8) = (DType::Float32, DType::Float16, DType::UInt8);
    let (chw, hwc) = (Layout::Chw, Layout::Hwc);
    let (fast, exact) = (Quality::Fast, Quality::Exact);
    cases.push(("random crop, float32 CHW, fast", chain(with(train.clone()), f32, chw, fast)));
    cases.push(("random crop, float16 CHW, fast", chain(with(train.clone()), f16, chw, fast)));
    cases.push(("random crop, uint8 HWC, fast", chain(train.clone(), u8, hwc, fast)));
    cases.push(("random crop, float32 CHW, exact", chain(with(train), f32, chw, exact)));
    cases.push(("resize + center, float32 CHW, fast", chain(with(eval.clone()), f32, chw, fast)));
    cases.push(("resize + center, float32 CHW, exact", chain(with(eval), f32, chw, exact)));
    cases.push(("no operator, float32 CHW, exact", chain(with(vec![]), f32, chw, exact)));

    // A word on the command line picks cases; the full decode stays, as the measure, but under a
    // profiler, where only the cases are of interest.
    if let Some(word) = std::env::args().skip(1).find(|a| !a.starts_with('-')) {
        let mut first = std::env::var_os("FOREBAY_BENCH_PROFILE").is_none();
        cases.retain(|(name, _)| std::mem::take(&mut first) || name.contains(&word));
    }
    let mut rates = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, case), rates) in cases.iter_mut().zip(&mut rates) {
            let (wall, cpu, mut n) = (Instant::now(), cpu_time(), 0);
            while wall.elapsed() < CASE_TIME {
                case(n, &files[n % files.len()]);
                n += 1;
            }
            let spent = cpu_time().zip(cpu).map_or(wall.elapsed(), |(now, then)| now - then);
            rates.push(n as f64 / spent.as_secs_f64());
        }
    }
    // The share is the median of each round's own: a machine's speed changes between rounds.
    let full = rates[0].clone();
    for ((name, _), rates) in cases.iter().zip(&rates) {
        let shares = rates.iter().zip(&full).map(|(rate, full)| rate / full).collect();
        let (rate, share) = (median(rates.clone()), median(shares));
        println!("{name:<40} {rate:>8.0} images/s  {share:>5.3} of the full decode");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The floor: with the same decoder, only the rectangle that a random crop looks at, in whole units.
fn region_decode() -> impl FnMut(usize, &[u8]) {
    // SAFETY: as in `full_decode`.
    let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as i32) };
    assert!(!handle.is_null());
    let mut pixels = Vec::new();
    move |i, bytes| {
        let row = RowKey { seed: 7, epoch: 0, ordinal: i as u64, index: 0 };
        // SAFETY: the handle is live, the bytes are a slice, the region lies inside the picture, and
        // the buffer has three bytes for each of the region's pixels.
        let rc = unsafe {
            assert_eq!(tj::tj3DecompressHeader(handle, bytes.as_ptr(), bytes.len() as _), 0);
            let w = tj::tj3Get(handle, tj::TJPARAM_TJPARAM_JPEGWIDTH as i32);
            let h = tj::tj3Get(handle, tj::TJPARAM_TJPARAM_JPEGHEIGHT as i32);
            let gray =
                tj::tj3Get(handle, tj::TJPARAM_TJPARAM_SUBSAMP as i32) == tj::TJSAMP_TJSAMP_GRAY;
            let unit = if gray { 8 } else { 16 };
            let (x, y, cw, ch) = crop(row, w, h);
            let x0 = x / unit * unit;
            let region = tj::tjregion { x: x0, y, w: x + cw - x0, h: ch };
            assert_eq!(tj::tj3SetCroppingRegion(handle, region), 0);
            pixels.resize(region.w as usize * region.h as usize * 3, 0u8);
            let (out, rgb) = (pixels.as_mut_ptr(), tj::TJPF_TJPF_RGB);
            let rc = tj::tj3Decompress8(handle, bytes.as_ptr(), bytes.len() as _, out, 0, rgb);
            tj::tj3SetCroppingRegion(handle, tj::tjregion { x: 0, y: 0, w: 0, h: 0 });
            rc
        };
        assert_eq!(rc, 0);
    }
}

/// Left, top, width and height of a crop as RandomResizedCrop draws them.
fn crop(row: RowKey, w: i32, h: i32) -> (i32, i32, i32, i32) {
    let mut draws = row.draws(0);
    for _ in 0..10 {
        let area = f64::from(w) * f64::from(h) * draws.uniform_in(0.08, 1.0);
        let aspect = draws.uniform_in((3.0f64 / 4.0).ln(), (4.0f64 / 3.0).ln()).exp();
        let (cw, ch) =
            ((area * aspect).sqrt().round() as i32, (area / aspect).sqrt().round() as i32);
        if (1..=w).contains(&cw) && (1..=h).contains(&ch) {
            let y = draws.below((h - ch + 1) as u64) as i32;
            let x = draws.below((w - cw + 1) as u64) as i32;
            return (x, y, cw, ch);
        }
    }
    (0, 0, w, h)
}

/// CPU time of this thread so far, where the kernel says it.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

fn chain(ops: Vec<ImageOp>, dtype: DType, layout: Layout, quality: Quality) -> Work {
    let mode = Some(ImageMode::Rgb);
    let spec = MapImage { mode, dtype, layout, quality, ..MapImage::new("image", ops) };
    let pipeline = ImagePipeline::new(&spec, 0).unwrap();
    let mut scratch = Scratch::new();
    // A batch of 64 (or FOREBAY_BENCH_BATCH), as the slab has it: the writes go to memory, not to the cache.
    let slots =
        std::env::var("FOREBAY_BENCH_BATCH").ok().and_then(|v| v.parse().ok()).unwrap_or(64);
    let mut slab: Vec<Vec<u8>> = vec![Vec::new(); slots];
    Box::new(move |i, bytes| {
        let row = RowKey { seed: 7, epoch: 0, ordinal: i as u64, index: 0 };
        let slot = &mut slab[i % slots];
        let length = match pipeline.shape(3) {
            Some(shape) => shape.iter().product::<usize>() * dtype.size(),
            None => pipeline.probe(bytes, row).unwrap().elements() * dtype.size(),
        };
        // Where a slab's samples begin too.
        slot.resize(length + 64, 0);
        let start = slot.as_ptr().align_offset(64);
        pipeline.run(&mut scratch, bytes, row, &mut slot[start..start + length]).unwrap();
    })
}

/// The limit: TurboJPEG with one decoder and one buffer for all, defaults, RGB.
fn full_decode() -> impl FnMut(usize, &[u8]) {
    // SAFETY: no pointer goes in; the handle lives until the process ends.
    let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as i32) };
    assert!(!handle.is_null());
    let mut pixels = Vec::new();
    move |_, bytes| {
        // SAFETY: the handle is live, the bytes are a slice, and the buffer has three bytes for each
        // pixel that the header of these bytes says.
        let rc = unsafe {
            assert_eq!(tj::tj3DecompressHeader(handle, bytes.as_ptr(), bytes.len() as _), 0);
            let w = tj::tj3Get(handle, tj::TJPARAM_TJPARAM_JPEGWIDTH as i32) as usize;
            let h = tj::tj3Get(handle, tj::TJPARAM_TJPARAM_JPEGHEIGHT as i32) as usize;
            pixels.resize(w * h * 3, 0u8);
            let (out, rgb) = (pixels.as_mut_ptr(), tj::TJPF_TJPF_RGB);
            tj::tj3Decompress8(handle, bytes.as_ptr(), bytes.len() as _, out, 0, rgb)
        };
        assert_eq!(rc, 0);
    }
}
