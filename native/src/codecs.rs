//! The codecs of record batches.

use std::io::Read;

use zstd::zstd_safe::{DCtx, get_frame_content_size};

use crate::batches::Fault;

/// What snappy and the other codecs unpack to at most: brokers allow batches of 2 GiB at most.
const UNPACKED_MAX: usize = 1 << 30;
/// The frame that Java's clients write around blocks of snappy; librdkafka writes one bare block.
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";

/// Unpacks, with memory that is kept between batches.
pub struct Codecs {
    unpacked: Vec<u8>,
    zstd: Option<DCtx<'static>>,
    /// Of batches in zstd, the only codec for which the Kafka client has a limit.
    pub zstd_max: usize,
}

impl Codecs {
    pub fn new(zstd_max: usize) -> Codecs {
        Codecs { unpacked: Vec::new(), zstd: None, zstd_max }
    }

    /// Return the records of a batch, unpacked.
    pub fn open<'a>(&'a mut self, codec: i16, packed: &'a [u8]) -> Result<&'a [u8], Fault> {
        match codec {
            0 => return Ok(packed),
            1 => self.read(flate2::read::MultiGzDecoder::new(packed), UNPACKED_MAX)?,
            2 => self.snappy(packed)?,
            3 => self.read(lz4_flex::frame::FrameDecoder::new(packed), UNPACKED_MAX)?,
            4 => self.zstd(packed)?,
            _ => {
                return Err(Fault::Unreadable(format!("its codec has the number {codec}, which no client knows")));
            }
        }
        Ok(&self.unpacked)
    }

    fn read(&mut self, from: impl Read, limit: usize) -> Result<(), Fault> {
        self.unpacked.clear();
        let read = from.take(limit as u64 + 1).read_to_end(&mut self.unpacked);
        match read.map_err(|error| unreadable(&error))? {
            size if size > limit => Err(Fault::TooLarge(None)),
            _ => Ok(()),
        }
    }

    fn zstd(&mut self, packed: &[u8]) -> Result<(), Fault> {
        let size = get_frame_content_size(packed).ok().flatten();
        if let Some(size) = size.filter(|size| *size > self.zstd_max as u64) {
            return Err(Fault::TooLarge(Some(size)));
        }
        let mut context = self.zstd.take().unwrap_or_default();
        let read = self.read(zstd::stream::read::Decoder::with_context(packed, &mut context), self.zstd_max);
        self.zstd = Some(context);
        read
    }

    fn snappy(&mut self, packed: &[u8]) -> Result<(), Fault> {
        self.unpacked.clear();
        let Some(mut rest) = packed.strip_prefix(SNAPPY_MAGIC).and_then(|rest| rest.get(8..)) else {
            return self.snappy_block(packed);
        };
        while !rest.is_empty() {
            let cut = || Fault::Unreadable("a block of snappy ends early".into());
            let (size, blocks) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            let size = u32::from_be_bytes(*size) as usize;
            let (block, others) = blocks.split_at_checked(size).ok_or_else(cut)?;
            self.snappy_block(block)?;
            rest = others;
        }
        Ok(())
    }

    fn snappy_block(&mut self, block: &[u8]) -> Result<(), Fault> {
        let size = snap::raw::decompress_len(block).map_err(|error| unreadable(&error))?;
        let before = self.unpacked.len();
        // A byte of snappy stands for 64 bytes at most.
        if size > block.len().saturating_mul(64) || before + size > UNPACKED_MAX {
            return Err(Fault::Unreadable("a block of snappy is larger than it can be".into()));
        }
        self.unpacked.resize(before + size, 0);
        let unpacked = snap::raw::Decoder::new().decompress(block, &mut self.unpacked[before..]);
        unpacked.map(|_| ()).map_err(|error| unreadable(&error))
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> Fault {
    Fault::Unreadable(error.to_string())
}
