//! For all plans and for all texts.

use forebay_core::{DType, Layout};
use forebay_plan::schedule::{EpochEnd, Shuffle};
use forebay_plan::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Names as people and machines make them: quotes, dots, line ends, other scripts.
fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_]{1,6}", "[a-zA-Z0-9 .\\[\\]\"'\\\\:#\n\t\u{7f}é漢]{1,8}", any::<String>()]
        .prop_filter("a name is not empty", |s| !s.trim().is_empty())
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::hash_set(name(), 1..4).prop_map(|s| s.into_iter().collect())
}

fn uri() -> impl Strategy<Value = String> {
    prop_oneof!["s3://[a-z]{1,5}/[a-z/*]{0,8}", name()]
        .prop_filter("no credentials", |u| !u.contains("://") || !u.contains(['@', '?']))
}

fn storage() -> impl Strategy<Value = StorageOptions> {
    let endpoint = option::of("https?://[a-z]{1,5}:[1-9][0-9]{0,3}");
    (endpoint, option::of("[a-z0-9-]{1,9}"), any::<Option<bool>>(), any::<Option<bool>>()).prop_map(
        |(endpoint, region, path_style, anonymous)| StorageOptions {
            endpoint,
            region,
            path_style,
            anonymous,
        },
    )
}

fn edge() -> impl Strategy<Value = u32> {
    1u32..=65536
}

fn interval() -> impl Strategy<Value = [f64; 2]> {
    (1e-6..10.0f64, 0.0..10.0f64).prop_map(|(low, more)| [low, low + more])
}

fn interpolation() -> impl Strategy<Value = Interpolation> {
    select(vec![Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic])
}

fn op() -> impl Strategy<Value = ImageOp> {
    let size = || [edge(), edge()];
    let padding = select(vec![
        PaddingMode::Constant,
        PaddingMode::Edge,
        PaddingMode::Reflect,
        PaddingMode::Symmetric,
    ]);
    prop_oneof![
        (vec(edge(), 2), interpolation(), any::<bool>()).prop_map(
            |(size, interpolation, antialias)| {
                ImageOp::Resize { size, interpolation, max_size: None, antialias }
            }
        ),
        (1u32..65536, any::<bool>(), interpolation()).prop_map(|(edge, max, interpolation)| {
            let max_size = max.then_some(edge + 1);
            ImageOp::Resize { size: vec![edge], interpolation, max_size, antialias: true }
        }),
        size().prop_map(ImageOp::center_crop),
        (
            size(),
            option::of([0u32..9, 0u32..9, 0u32..9, 0u32..9]),
            any::<bool>(),
            any::<u8>(),
            padding
        )
            .prop_map(|(size, padding, pad_if_needed, fill, padding_mode)| {
                ImageOp::RandomCrop { size, padding, pad_if_needed, fill, padding_mode }
            }),
        (size(), interval(), interval(), interpolation(), any::<bool>()).prop_map(
            |(size, scale, ratio, interpolation, antialias)| ImageOp::RandomResizedCrop {
                size,
                scale,
                ratio,
                interpolation,
                antialias
            }
        ),
        (0.0..=1.0f64).prop_map(|p| ImageOp::RandomHorizontalFlip { p }),
        pixel_op(),
    ]
}

fn range(low: f64, high: f64) -> impl Strategy<Value = [f64; 2]> {
    [low..=high, low..=high].prop_map(|[a, b]| [a.min(b), a.max(b)])
}

/// Operators on pixels, with fills that fit every mode.
fn pixel_op() -> impl Strategy<Value = ImageOp> {
    let warp = || select(vec![Interpolation::Nearest, Interpolation::Bilinear]);
    let fill = || any::<u8>().prop_map(|v| vec![v]);
    let p = || 0.0..=1.0f64;
    let factor = || option::of(range(0.0, 9.0));
    prop_oneof![
        p().prop_map(|p| ImageOp::RandomVerticalFlip { p }),
        ([0u32..9, 0u32..9, 0u32..9, 0u32..9], fill()).prop_map(|(padding, fill)| ImageOp::Pad {
            padding,
            fill,
            padding_mode: PaddingMode::Edge
        }),
        (factor(), factor(), factor(), option::of(range(-0.5, 0.5))).prop_map(
            |(brightness, contrast, saturation, hue)| ImageOp::ColorJitter {
                brightness,
                contrast,
                saturation,
                hue
            }
        ),
        (range(-360.0, 360.0), warp(), any::<bool>(), option::of(range(-9.0, 9.0)), fill())
            .prop_map(|(degrees, interpolation, expand, center, fill)| {
                ImageOp::RandomRotation { degrees, interpolation, expand, center, fill }
            }),
        (p(), range(0.0, 1.0), interval(), any::<bool>(), 0.0..=255.0f64).prop_map(
            |(p, scale, ratio, random, value)| {
                let value = if random { Erase::Random } else { Erase::Value(vec![value]) };
                ImageOp::RandomErasing { p, scale, ratio, value }
            }
        ),
        ([0u32..9, 0u32..9], interval()).prop_map(|([w, h], sigma)| ImageOp::GaussianBlur {
            kernel_size: [2 * w + 1, 2 * h + 1],
            sigma
        }),
        (0u8..=8, p(), 0u8..7).prop_map(|(bits, p, which)| match which {
            0 => ImageOp::RandomGrayscale { p },
            1 => ImageOp::RandomInvert { p },
            2 => ImageOp::RandomPosterize { bits, p },
            3 => ImageOp::RandomSolarize { threshold: f64::from(bits) * 9.5, p },
            4 => ImageOp::RandomAdjustSharpness { sharpness_factor: f64::from(bits) / 3.0, p },
            5 => ImageOp::RandomAutocontrast { p },
            _ => ImageOp::RandomEqualize { p },
        }),
        (
            range(-360.0, 360.0),
            option::of(range(0.0, 1.0)),
            option::of(interval()),
            option::of((range(-80.0, 80.0), range(-80.0, 80.0))),
            warp(),
            fill(),
            option::of(range(-9.0, 9.0))
        )
            .prop_map(|(degrees, translate, scale, shear, interpolation, fill, center)| {
                let shear = shear.map(|([a, b], [c, d])| [a, b, c, d]);
                ImageOp::RandomAffine {
                    degrees,
                    translate,
                    scale,
                    shear,
                    interpolation,
                    fill,
                    center,
                }
            }),
        (2u32..99, warp(), option::of(fill())).prop_map(
            |(num_magnitude_bins, interpolation, fill)| {
                ImageOp::TrivialAugmentWide { num_magnitude_bins, interpolation, fill }
            }
        ),
        (0u32..9, 0u32..9, 9u32..99, warp(), option::of(fill())).prop_map(
            |(num_ops, magnitude, num_magnitude_bins, interpolation, fill)| {
                ImageOp::RandAugment { num_ops, magnitude, num_magnitude_bins, interpolation, fill }
            }
        ),
    ]
}

fn encoding() -> impl Strategy<Value = Encoding> {
    let subsampling = select(vec![Subsampling::S444, Subsampling::S422, Subsampling::S420]);
    prop_oneof![
        (1u8..=100, subsampling, any::<bool>(), any::<bool>()).prop_map(
            |(quality, subsampling, progressive, optimize)| Encoding::Jpeg {
                quality,
                subsampling,
                progressive,
                optimize
            }
        ),
        (0u8..=9).prop_map(|compress_level| Encoding::Png { compress_level }),
        (0u8..=100, any::<bool>(), 0u8..=6, any::<bool>()).prop_map(
            |(quality, lossless, method, exact)| Encoding::WebP {
                quality,
                lossless,
                method,
                exact
            }
        ),
    ]
}

fn map_image() -> impl Strategy<Value = MapImage> {
    let mode = option::of(select(vec![ImageMode::Rgb, ImageMode::L, ImageMode::Rgba]));
    let dtype = select(vec![DType::UInt8, DType::Float16, DType::BFloat16, DType::Float32]);
    let numbers = vec((any::<f32>(), 1e-3..9.0f64), 4);
    let encoding = option::of(encoding());
    (name(), vec(op(), 0..4), mode, dtype, any::<[bool; 3]>(), numbers, encoding).prop_map(
        |(column, mut ops, mode, dtype, [hwc, exact, normalize], numbers, encoding)| {
            // Opacity is no colour: such operators are not for RGBA.
            ops.retain(|op| mode.is_none_or(|mode| op.takes(mode)));
            if exact {
                ops.push(ImageOp::ToDtype { dtype, scale: hwc });
            }
            if normalize && dtype.is_float() {
                let n = mode.map_or(3, ImageMode::channels);
                ops.push(ImageOp::Normalize {
                    mean: numbers[..n]
                        .iter()
                        .map(|(m, _)| if m.is_finite() { f64::from(*m) } else { 0.0 })
                        .collect(),
                    std: numbers[..n].iter().map(|(_, s)| *s).collect(),
                });
            }
            // Pixels alone can be written back, and opacity not in every format.
            let fits = |e: &Encoding| !dtype.is_float() && mode.is_none_or(|mode| e.takes(mode));
            ops.extend(encoding.filter(fits).map(ImageOp::encode_image));
            // Skipping goes with a mode too, and no limit may come behind it: `bad_rows` has tests.
            let on_error = if mode.is_some() && hwc { OnError::Null } else { OnError::Raise };
            MapImage {
                column,
                ops,
                mode,
                dtype,
                layout: if hwc { Layout::Hwc } else { Layout::Chw },
                quality: if exact { Quality::Exact } else { Quality::Fast },
                on_error,
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let numbers = DType::ALL.into_iter().filter(|d| *d != DType::Bool).collect::<Vec<_>>();
    prop_oneof![
        name().prop_map(Step::Filter),
        names().prop_map(Step::Select),
        names().prop_map(Step::Drop),
        (names(), any::<bool>()).prop_map(|(n, turn)| {
            let mut news = n.clone();
            if turn {
                news.rotate_left(1);
            }
            Step::Rename(n.into_iter().zip(news).collect())
        }),
        (name(), name()).prop_map(|(name, expr)| Step::WithColumn { name, expr }),
        any::<u64>().prop_map(Step::Limit),
        name().prop_map(Step::Explode),
        map_image().prop_map(Step::MapImage),
        (names(), name(), select(numbers)).prop_map(|(columns, into, dtype)| Step::Stack {
            columns,
            into,
            dtype
        }),
    ]
}

/// A step behind which no other chooses rows.
fn mix_images() -> impl Strategy<Value = Step> {
    let op = |n: u32| {
        (1e-6..100.0f64, any::<bool>()).prop_map(move |(alpha, cut)| {
            let num_classes = (n > 0).then_some(n);
            if cut {
                MixOp::CutMix { alpha, num_classes }
            } else {
                MixOp::MixUp { alpha, num_classes }
            }
        })
    };
    let ops = (0u32..9).prop_flat_map(move |n| vec((op(n), 0.0..10.0f64), 1..4));
    (names(), ops, any::<bool>())
        .prop_filter_map("two columns", |(names, ops, weighted)| match names.as_slice() {
            [column, label, ..] => {
                let (ops, mut p): (Vec<MixOp>, Vec<f64>) = ops.into_iter().unzip();
                p[0] += 0.5;
                let p = weighted.then_some(p);
                Some(MixImages { p, ..MixImages::new(column, label, ops) })
            }
            _ => None,
        })
        .prop_map(Step::MixImages)
}

fn sink() -> impl Strategy<Value = Sink> {
    let mode = select(vec![WriteMode::Error, WriteMode::Overwrite, WriteMode::Append]);
    // A sink is one folder, whatever the source is.
    let folder = uri().prop_map(|uri| uri.replace(['*', '?'], "x"));
    (folder, mode, 1..=22i32, 1024u64..1 << 50, 1024u64..1 << 50, storage()).prop_map(
        |(uri, mode, compression_level, row_group_bytes, file_bytes, storage)| {
            Sink::Parquet(ParquetSink {
                uri,
                mode,
                compression_level,
                row_group_bytes,
                file_bytes,
                storage,
                bad_rows: BadRows::default(),
            })
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let source = (vec(uri(), 1..4), option::of(uri()), option::of(names()), storage());
    (source, vec(step(), 0..6), option::of(sink()), option::weighted(0.3, mix_images())).prop_map(
        |((uri, snapshot, columns, storage), mut steps, sink, mix)| {
            // Jobs mix nothing.
            steps.extend(mix.filter(|_| sink.is_none()));
            // A snapshot stands in the place of what is listed.
            let uri = if snapshot.is_some() { Vec::new() } else { uri };
            let source = ParquetSource { uri, snapshot, columns, storage };
            Plan { source: Source::Parquet(source), steps, sink }
        },
    )
}

fn fill() -> impl Strategy<Value = Fill> {
    let special = select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e300]);
    prop_oneof![
        any::<i64>().prop_map(Fill::Int),
        any::<f64>().prop_map(Fill::Float),
        special.prop_map(Fill::Float)
    ]
}

fn per_column<T: Clone + std::fmt::Debug>(
    value: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = PerColumn<T>> {
    let named = prop::collection::hash_map(name(), value.clone(), 0..3);
    prop_oneof![
        value.prop_map(PerColumn::All),
        named.prop_map(|m| PerColumn::Named(m.into_iter().collect()))
    ]
}

fn loader() -> impl Strategy<Value = LoaderOptions> {
    let ends = option::of(select(vec![EpochEnd::Drop, EpochEnd::Pad, EpochEnd::Partial]));
    let formats = select(vec![Format::Torch, Format::Numpy, Format::Arrow, Format::Dlpack]);
    let lists = per_column(select(vec![Lists::Error, Lists::Ragged, Lists::Pad]));
    let first =
        (1u64..1 << 20, any::<bool>(), any::<bool>(), any::<u64>(), option::of(0u64..64), ends);
    let second = (
        option::of(1u64..99),
        option::of(1u64..99),
        option::of(per_column(fill().boxed())),
        formats,
    );
    let third = (
        lists,
        select(vec![PinMemory::Auto, PinMemory::Always, PinMemory::Never]),
        option::of(1u64..64),
        option::of(1u64 << 20..1 << 50),
        option::of(0u64..9),
    );
    (first, second, third).prop_map(
        |(
            (b, global, none, seed, rank, end),
            (lanes, window, fill, format),
            (lists, pin, threads, memory, ahead),
        )| {
            let mut o =
                if global { LoaderOptions::with_global_batch(b) } else { LoaderOptions::new(b) };
            o.shuffle = if none { Shuffle::None } else { Shuffle::Window };
            o.seed = seed;
            o.rank = rank;
            o.world_size = rank.map(|_| 64);
            o.epoch_end = end;
            (o.lanes, o.window, o.fill, o.format) = (lanes, window, fill, format);
            (o.lists, o.pin_memory, o.num_threads, o.memory_limit, o.prefetch) =
                (lists, pin, threads, memory, ahead);
            o
        },
    )
}

/// Texts that are nearly job files: words of the language, structure, and noise between them.
fn nearly_yaml() -> impl Strategy<Value = String> {
    let words = [
        "source:",
        "parquet:",
        "uri:",
        "steps:",
        "- ",
        "  ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        ", ",
        ": ",
        "filter",
        "resize",
        "map_image:",
        "column:",
        "ops:",
        "random_horizontal_flip",
        "224",
        "-1",
        "1e999",
        ".nan",
        "null",
        "~",
        "true",
        "'",
        "\"",
        "&a ",
        "*a",
        "<<: ",
        "|\n",
        ">\n",
        "---\n",
        "!!binary ",
        "!x ",
        "#",
        "? ",
        "\t",
        "\u{feff}",
        "x",
        "\\",
        "access_key: K",
        "version: 9",
    ];
    vec(
        prop_oneof![8 => select(words.to_vec()).prop_map(str::to_owned), 1 => any::<String>()],
        0..40,
    )
    .prop_map(|w| w.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_plan_comes_back_from_json(plan in plan()) {
        plan.validate().unwrap();
        let json = plan.to_json();
        let back = Plan::from_json(&json).map_err(|e| TestCaseError::fail(e.report()))?;
        prop_assert_eq!(&back, &plan);
        prop_assert_eq!(back.to_json(), json);
        prop_assert_eq!(back.hash(), plan.hash());
        // JSON is YAML, so the job file reader gives the same.
        let pretty = plan.to_node().to_json_pretty();
        prop_assert_eq!(&Plan::from_json(&pretty).unwrap(), &plan);
        // serde_json is the judge of our writer.
        let theirs: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
        let pretty: serde_json::Value = serde_json::from_str(&pretty).unwrap();
        prop_assert_eq!(theirs, pretty);
    }

    #[test]
    fn steps_come_back_from_json(step in prop_oneof![8 => step(), 1 => mix_images()]) {
        let back = Step::from_json(&step.to_json()).map_err(|e| TestCaseError::fail(e.report()))?;
        prop_assert_eq!(back, step);
    }

    #[test]
    fn loader_options_come_back_from_json(options in loader()) {
        options.validate().unwrap();
        let back = LoaderOptions::from_json(&options.to_json()).map_err(|e| TestCaseError::fail(e.report()))?;
        prop_assert_eq!(back, options);
    }

    #[test]
    fn no_text_panics(text in prop_oneof![nearly_yaml(), any::<String>()]) {
        for error in [Plan::from_yaml(&text, "job.yaml").err(), Plan::from_json(&text).err()].into_iter().flatten() {
            prop_assert!(error.place().is_some(), "{:?}", error);
            prop_assert!(error.hint().is_some(), "{:?}", error);
            prop_assert!(!error.to_string().contains('\n'), "{:?}", error);
        }
        if let Ok(node) = Node::from_yaml(&text, "job.yaml") {
            let _ = LoaderOptions::from_node(&node);
            // What was read from YAML and has no infinite numbers is the same in JSON.
            prop_assert!(Node::from_json(&node.to_json()).is_ok());
        }
    }
}
