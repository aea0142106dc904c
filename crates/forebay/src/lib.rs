//! Forebay: a streaming data engine for machine learning.
