//! The Python package of Forebay.
