//! Layers, each with its forward and backward ops.

mod activation;
mod convolution;
mod image;
mod linear;
mod loss;
mod normalization;
mod pooling;
mod unit;

pub(super) use convolution::Filter;
pub(super) use linear::Matrix;
pub(super) use unit::Kernel;

use super::tape::{Shape, Tape, Value};

/// A square window that slides over an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The side of the window, in pixels.
    pub(super) kernel: u64,
    /// The step of the window, in pixels.
    pub(super) stride: u64,
    /// The zeros on each side of the image.
    pub(super) padding: u64,
    /// The distance between the pixels of the window; 1 for neighbours.
    pub(super) dilation: u64,
}

impl Window {
    /// A window whose padding keeps the image's size at stride 1.
    pub(super) const fn same(kernel: u64, stride: u64) -> Self {
        Self::padded(kernel, stride, kernel / 2)
    }

    /// A window without holes.
    pub(super) const fn padded(kernel: u64, stride: u64, padding: u64) -> Self {
        Self { kernel, stride, padding, dilation: 1 }
    }

    /// A window with holes that keeps the image's size.
    pub(super) const fn atrous(kernel: u64, dilation: u64) -> Self {
        Self { kernel, stride: 1, padding: kernel / 2 * dilation, dilation }
    }

    /// Returns the number of positions; 1 if the image is smaller than the window.
    const fn positions(self, extent: u64) -> u64 {
        let reach = self.dilation * (self.kernel - 1) + 1;
        (extent + 2 * self.padding).saturating_sub(reach) / self.stride + 1
    }

    const fn slide(self, [batch, _, height, width]: Shape, channels: u64) -> Shape {
        [batch, channels, self.positions(height), self.positions(width)]
    }
}

/// The operations of a matrix product: two for each multiplication.
pub(super) fn product_flops(rows: u64, inner: u64, columns: u64) -> u128 {
    2 * u128::from(rows).saturating_mul(u128::from(inner)).saturating_mul(u128::from(columns))
}

impl Tape {
    /// Records the backward op of a layer with one input. It reads the gradient of `y` and the saved tensors.
    fn undo_from(&mut self, name: &str, x: Value, y: Value, saved: &[Value]) {
        let (name, saved) = (name.to_owned(), saved.to_vec());
        self.on_backward(y, move |tape, gradient| {
            let saved = saved.iter().map(|&value| tape.at(value));
            let reads: Vec<_> = std::iter::once(gradient).chain(saved).collect();
            let input = [(x, format!("{name}.grad_input"))];
            tape.undo(format!("{name}.backward"), 0, &reads, input);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_slide() {
        for (window, extent, positions) in [
            (Window::same(7, 2), 224, 112),
            (Window::same(3, 2), 513, 257),
            (Window::same(1, 2), 7, 4),
            (Window::padded(2, 2, 0), 7, 3),
            (Window::padded(4, 2, 2), 512, 257),
            (Window::padded(4, 1, 2), 65, 66),
            (Window::atrous(3, 18), 33, 33),
            (Window::padded(2, 2, 0), 1, 1),
        ] {
            assert_eq!(window.positions(extent), positions, "{window:?} over {extent}");
        }
    }
}
