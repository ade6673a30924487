//! Images for a model: told by their content, scaled down to what providers take.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageFormat, ImageReader, RgbImage};

use super::ToolError;
use super::blocking::Abort;

/// How much of a file decides whether it is an image.
pub const SNIFF_BYTES: usize = 4100;
/// What stands in place of an image that cannot be given to a model.
pub const OMITTED: &str = "[Image omitted: could not be resized below the inline image size limit.]";

/// Largest width and height, in pixels.
const MAX_SIDE: u32 = 2000;
/// The base64 text must be shorter than this, in bytes.
const MAX_BASE64: usize = 4 * 1024 * 1024 + 512 * 1024;
/// Largest image in memory, in bytes.
const MAX_DECODED: u64 = 512 * 1024 * 1024;
/// Tried in turn when a PNG is too large.
const JPEG_QUALITIES: [u8; 5] = [80, 85, 70, 55, 40];

/// Formats that models take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// GIF.
    Gif,
    /// WebP.
    WebP,
}

impl Format {
    /// Its media type.
    #[must_use]
    pub fn mime_type(self) -> &'static str {
        self.library_format().to_mime_type()
    }

    fn library_format(self) -> ImageFormat {
        match self {
            Self::Jpeg => ImageFormat::Jpeg,
            Self::Png => ImageFormat::Png,
            Self::Gif => ImageFormat::Gif,
            Self::WebP => ImageFormat::WebP,
        }
    }
}

/// The format of a file that starts with these bytes; `None` if it is no image that models take.
#[must_use]
pub fn sniff(start: &[u8]) -> Option<Format> {
    match image::guess_format(start).ok()? {
        ImageFormat::Jpeg => Some(Format::Jpeg),
        ImageFormat::Png => Some(Format::Png),
        ImageFormat::Gif => Some(Format::Gif),
        ImageFormat::WebP => Some(Format::WebP),
        _ => None,
    }
}

/// An image that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitted {
    /// The image file, base64.
    pub base64: String,
    /// Its media type.
    pub mime_type: &'static str,
    /// Width and height before and after, in pixels, if it was scaled or encoded anew.
    pub resized: Option<((u32, u32), (u32, u32))>,
}

impl Fitted {
    /// The image as it is.
    #[must_use]
    pub fn unchanged(data: &[u8], format: Format) -> Self {
        Self { base64: STANDARD.encode(data), mime_type: format.mime_type(), resized: None }
    }

    /// What the model must know to point at places in the original.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let ((width, height), (shown_width, shown_height)) = self.resized?;
        let scale = f64::from(width) / f64::from(shown_width);
        Some(format!(
            "[Image: original {width}x{height}, displayed at {shown_width}x{shown_height}. Multiply coordinates by \
             {scale:.2} to map to original image.]"
        ))
    }
}

/// Makes an image fit: at most 2000 by 2000 pixels and less than 4.5 MiB of base64. One that does already
/// stays as it is. `None` if it cannot be decoded or not made small enough.
///
/// # Errors
///
/// `Operation aborted`.
pub fn fit(data: Vec<u8>, format: Format, abort: &Abort) -> Result<Option<Fitted>, ToolError> {
    let Some(image) = decode(&data, format) else {
        return Ok(None);
    };
    let (width, height) = (image.width(), image.height());
    if width <= MAX_SIDE && height <= MAX_SIDE && base64_length(data.len()) < MAX_BASE64 {
        return Ok(Some(Fitted::unchanged(&data, format)));
    }
    drop(data);
    let mut target = within(width, height);
    loop {
        abort.check()?;
        if let Some((data, format)) = encode_below(&image, target, MAX_BASE64, abort)? {
            let resized = Some(((width, height), target));
            return Ok(Some(Fitted { resized, ..Fitted::unchanged(&data, format) }));
        }
        if target == (1, 1) {
            return Ok(None);
        }
        target = (smaller(target.0), smaller(target.1));
    }
}

/// Decodes the (first) image and turns it upright as its EXIF data says.
fn decode(data: &[u8], format: Format) -> Option<DynamicImage> {
    let mut decoder =
        ImageReader::with_format(std::io::Cursor::new(data), format.library_format()).into_decoder().ok()?;
    // A small file may claim gigabytes of pixels.
    if decoder.total_bytes() > MAX_DECODED {
        return None;
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).ok()?;
    image.apply_orientation(orientation);
    (image.width() > 0 && image.height() > 0).then_some(image)
}

fn within(width: u32, height: u32) -> (u32, u32) {
    let scaled = |side: u32, of: u32| {
        let scaled = (u64::from(side) * u64::from(MAX_SIDE) + u64::from(of) / 2) / u64::from(of);
        u32::try_from(scaled).unwrap_or(MAX_SIDE).max(1)
    };
    let (width, height) = if width > MAX_SIDE { (MAX_SIDE, scaled(height, width)) } else { (width, height) };
    if height > MAX_SIDE { (scaled(width, height), MAX_SIDE) } else { (width, height) }
}

fn smaller(side: u32) -> u32 {
    // Sides are at most 2000 here.
    (side * 3 / 4).max(1)
}

/// The first encoding whose base64 is shorter than `limit`.
fn encode_below(
    image: &DynamicImage,
    (width, height): (u32, u32),
    limit: usize,
    abort: &Abort,
) -> Result<Option<(Vec<u8>, Format)>, ToolError> {
    let scaled = image.resize_exact(width, height, FilterType::Lanczos3);
    let scaled =
        if scaled.color().has_alpha() { scaled.into_rgba8().into() } else { DynamicImage::from(scaled.into_rgb8()) };
    abort.check()?;
    let mut data = std::io::Cursor::new(Vec::new());
    if scaled.write_to(&mut data, ImageFormat::Png).is_ok() && base64_length(data.get_ref().len()) < limit {
        return Ok(Some((data.into_inner(), Format::Png)));
    }
    let opaque = on_white(scaled);
    for quality in JPEG_QUALITIES {
        abort.check()?;
        let mut data = Vec::new();
        let encoder = JpegEncoder::new_with_quality(&mut data, quality);
        let encoded = encoder.write_image(&opaque, width, height, ExtendedColorType::Rgb8);
        if encoded.is_ok() && base64_length(data.len()) < limit {
            return Ok(Some((data, Format::Jpeg)));
        }
    }
    Ok(None)
}

/// JPEG knows no transparency; what shines through is white.
fn on_white(image: DynamicImage) -> RgbImage {
    let DynamicImage::ImageRgba8(image) = image else {
        return image.into_rgb8();
    };
    let (width, height) = image.dimensions();
    RgbImage::from_fn(width, height, |x, y| {
        let [r, g, b, alpha] = image.get_pixel(x, y).0;
        let blend = |channel: u8| {
            let (channel, alpha) = (u16::from(channel), u16::from(alpha));
            // At most 255 by construction.
            ((channel * alpha + 255 * (255 - alpha)) / 255) as u8
        };
        image::Rgb([blend(r), blend(g), blend(b)])
    })
}

fn base64_length(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

#[cfg(test)]
pub(super) mod tests {
    use pretty_assertions::assert_eq;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn no_abort() -> Abort {
        Abort::new(CancellationToken::new())
    }

    /// A PNG file of one colour.
    pub(in crate::tools) fn png(width: u32, height: u32) -> Vec<u8> {
        encode(&RgbImage::from_pixel(width, height, image::Rgb([200, 10, 10])).into(), ImageFormat::Png)
    }

    fn encode(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut data = std::io::Cursor::new(Vec::new());
        image.write_to(&mut data, format).unwrap();
        data.into_inner()
    }

    /// Pixels that no encoder makes small.
    fn noise(width: u32, height: u32) -> RgbImage {
        let mut state = 1u32;
        RgbImage::from_fn(width, height, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [r, g, b, _] = state.to_be_bytes();
            image::Rgb([r, g, b])
        })
    }

    /// A JPEG file whose EXIF data says that it lies on its side.
    fn turned_jpeg(width: u32, height: u32) -> Vec<u8> {
        let mut data = encode(&RgbImage::new(width, height).into(), ImageFormat::Jpeg);
        let mut exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0".to_vec();
        let mut segment = vec![0xff, 0xe1];
        segment.extend(u16::try_from(exif.len() + 2).unwrap().to_be_bytes());
        segment.append(&mut exif);
        data.splice(2..2, segment);
        data
    }

    #[test]
    fn formats_are_told_by_content() {
        let image = RgbImage::new(2, 2).into();
        for (library_format, format, mime_type) in [
            (ImageFormat::Jpeg, Format::Jpeg, "image/jpeg"),
            (ImageFormat::Png, Format::Png, "image/png"),
            (ImageFormat::Gif, Format::Gif, "image/gif"),
            (ImageFormat::WebP, Format::WebP, "image/webp"),
        ] {
            let data = encode(&image, library_format);
            assert_eq!(sniff(&data), Some(format));
            assert_eq!(format.mime_type(), mime_type);
            assert_eq!(
                fit(data.clone(), format, &no_abort()).unwrap(),
                Some(Fitted { base64: STANDARD.encode(&data), mime_type, resized: None })
            );
        }
        for other in [&b""[..], b"text", b"BM\0\0", b"%PDF-1.4", b"RIFF\0\0\0\0WAVE"] {
            assert_eq!(sniff(other), None);
        }
    }

    #[test]
    fn sides_are_limited_and_keep_their_ratio() {
        for (size, fitting) in [
            ((2000, 2000), (2000, 2000)),
            ((4000, 2000), (2000, 1000)),
            ((1000, 3000), (667, 2000)),
            ((8000, 4001), (2000, 1000)),
            ((100_000, 1), (2000, 1)),
        ] {
            assert_eq!(within(size.0, size.1), fitting);
        }
    }

    #[test]
    fn a_turned_image_is_measured_and_scaled_upright() {
        let fitted = fit(turned_jpeg(2100, 42), Format::Jpeg, &no_abort()).unwrap().unwrap();
        assert_eq!(fitted.resized, Some(((42, 2100), (40, 2000))));
        let data = STANDARD.decode(&fitted.base64).unwrap();
        let image = image::load_from_memory(&data).unwrap();
        assert_eq!((image.width(), image.height()), (40, 2000));
    }

    #[test]
    fn what_is_too_large_as_png_becomes_jpeg() {
        let image = DynamicImage::from(noise(64, 64));
        let png = encode_below(&image, (64, 64), usize::MAX, &no_abort()).unwrap().unwrap();
        assert_eq!(png.1, Format::Png);
        let limit = base64_length(png.0.len());
        let (data, format) = encode_below(&image, (64, 64), limit, &no_abort()).unwrap().unwrap();
        assert_eq!((format, sniff(&data)), (Format::Jpeg, Some(Format::Jpeg)));
        assert!(base64_length(data.len()) < limit);
        assert_eq!(encode_below(&image, (64, 64), 100, &no_abort()).unwrap(), None);
    }

    #[test]
    fn transparent_pixels_become_white() {
        let image = image::RgbaImage::from_raw(2, 1, vec![0, 0, 0, 0, 10, 20, 30, 255]).unwrap();
        assert_eq!(on_white(image.into()).into_raw(), [255, 255, 255, 10, 20, 30]);
    }

    #[test]
    fn what_does_not_decode_is_left_out() {
        let mut data = png(40, 40);
        data.truncate(50);
        assert_eq!(fit(data, Format::Png, &no_abort()).unwrap(), None);
    }

    #[test]
    fn a_small_file_cannot_claim_all_memory() {
        let mut data = encode(&RgbImage::new(8, 8).into(), ImageFormat::Jpeg);
        // Height and width in the start-of-frame segment.
        let frame = data.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        data[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
        assert_eq!(fit(data, Format::Jpeg, &no_abort()).unwrap(), None);
    }

    #[test]
    fn the_note_gives_the_scale() {
        let fitted =
            Fitted { base64: String::new(), mime_type: "image/png", resized: Some(((3000, 1500), (2000, 1000))) };
        assert_eq!(
            fitted.note().unwrap(),
            "[Image: original 3000x1500, displayed at 2000x1000. Multiply coordinates by 1.50 to map to original image.]"
        );
    }
}
