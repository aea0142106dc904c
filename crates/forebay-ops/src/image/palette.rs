//! From numbers of colours to colours.

use forebay_core::{Error, Result};

use super::grown;

/// Up to 256 colours. A number without a colour is black, as in Pillow.
pub(super) struct Palette {
    colors: [[u8; 4]; 256],
}

impl Palette {
    /// From red, green and blue, one after the other; all opaque.
    pub fn of_rgb(colors: impl IntoIterator<Item = [u8; 3]>) -> Self {
        let mut palette = Self { colors: [[0, 0, 0, 255]; 256] };
        for (entry, [r, g, b]) in palette.colors.iter_mut().zip(colors) {
            *entry = [r, g, b, 255];
        }
        palette
    }

    /// The same with one colour transparent.
    pub fn with_transparent(mut self, index: u8) -> Self {
        if let Some([.., alpha]) = self.colors.get_mut(usize::from(index)) {
            *alpha = 0;
        }
        self
    }

    /// Replaces `count` numbers at the front of `pixels` by their colours, of 3 or 4 channels.
    pub fn expand(&self, pixels: &mut Vec<u8>, count: usize, channels: usize) -> Result<()> {
        let pixels = grown(pixels, count * channels)?;
        // From the last to the first, so that none is overwritten unread.
        for i in (0..count).rev() {
            let index = pixels.get(i).copied().unwrap_or_default();
            let color = self.colors.get(usize::from(index)).and_then(|c| c.get(..channels));
            let target = pixels.get_mut(i * channels..(i + 1) * channels);
            let (Some(color), Some(target)) = (color, target) else {
                return Err(Error::internal("a palette was asked for more channels than it has"));
            };
            target.copy_from_slice(color);
        }
        Ok(())
    }

    /// The colour of a number.
    pub fn color(&self, index: u8) -> [u8; 4] {
        self.colors.get(usize::from(index)).copied().unwrap_or([0, 0, 0, 255])
    }
}
