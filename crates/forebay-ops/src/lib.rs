//! CPU operators: image decoding and transforms.
