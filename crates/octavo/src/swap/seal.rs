//! Encryption of the pages that leave for a device, with a key that exists only in this process.
//!
//! The cipher is AES-256-GCM if the processor has instructions for it, and otherwise ChaCha20-Poly1305. For
//! each slot, 28 bytes stay in memory. These bytes are not secret, but a page cannot be decrypted without
//! them:
//!
//! ```text
//!  0          4            12                     28
//! +----------+-------------+----------------------+
//! |  prefix  |   counter   |         tag          |      nonce = prefix and counter
//! +----------+-------------+----------------------+
//! ```
//!
//! The counter grows by one for each sealed page, so no nonce repeats under the key. The tag covers the
//! slot's number, so the bytes of one slot are not accepted in another slot. The device sees only bytes that
//! [`Seal::seal`] made. `seal` writes to a bounce frame, and the page itself is unchanged.
//!
//! The expanded key lies in pages of its own. These pages are locked and kept out of core dumps as far as the
//! kernel allows, and wiped at the end. Copies that remain on the stack after the key was made are not wiped.
//!
//! The tag proves more than a checksum: bytes that [`Seal::open`] accepts need no other check.
//!
//! The words of a slot belong to the thread that writes the slot (its frame is under WRITEBACK) or reads it
//! (READING). Two threads never have them. The slot's content is published after the words, and orders them.
//!
//! Cost, with these instructions: 1.2 µs for each page in each direction, and two copies of 60 ns each.

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use chacha20poly1305::ChaCha20Poly1305;
use octavo_platform::Secret;
use zeroize::Zeroizing;

use crate::budget::Budget;
use crate::frame::FrameAllocator;
use crate::swap::content::Corrupt;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, Random, WordArray, fence};
use crate::units::{FrameId, PAGE_BYTES, SwapSlot};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const WORDS: usize = (NONCE_BYTES + TAG_BYTES) / 4;
/// The number of slots whose words are charged together.
const CHARGED_SLOTS: u32 = 512;

/// The cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// AES-256-GCM.
    Aes,
    /// ChaCha20-Poly1305.
    ChaCha,
}

impl Method {
    /// Returns the quicker cipher on this processor.
    pub(crate) fn probe() -> Self {
        let has_instructions =
            std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
        if has_instructions { Self::Aes } else { Self::ChaCha }
    }
}

/// A cipher with its expanded key, which it wipes when it is dropped.
#[allow(clippy::large_enum_variant, reason = "there is one of it, in pages of its own")]
enum Cipher {
    Aes(Aes256Gcm),
    ChaCha(ChaCha20Poly1305),
}

/// Nonce and tag of a slot.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(C)]
struct SealWords([AtomicU32; WORDS]);

/// Seals and opens pages. It owns the key.
pub(crate) struct Seal {
    method: Method,
    cipher: Secret<Cipher>,
    prefix: u32,
    counter: AtomicU64,
    words: WordArray<SealWords>,
    /// Whether the words of each [`CHARGED_SLOTS`] slots are charged.
    charged: WordArray<AtomicU32>,
    charged_bytes: AtomicU64,
    budget: Arc<Budget>,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seal by {:?}, {} pages sealed", self.method, self.counter.load(Ordering::Relaxed))
    }
}

impl Seal {
    pub(crate) const BYTES_PER_SLOT: u64 = size_of::<SealWords>() as u64;

    /// Makes a fresh key, for slots below `slots`.
    ///
    /// # Errors
    /// The kernel's error, if it gives no random bytes or no address space.
    pub(crate) fn new(
        method: Method,
        slots: u32,
        budget: Arc<Budget>,
        random: &Random,
    ) -> std::io::Result<Self> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        random.fill(&mut *key)?;
        let mut prefix = [0; 4];
        random.fill(&mut prefix)?;
        let cipher = match method {
            Method::Aes => Cipher::Aes(Aes256Gcm::new((&*key).into())),
            Method::ChaCha => Cipher::ChaCha(ChaCha20Poly1305::new((&*key).into())),
        };
        Ok(Self {
            method,
            cipher: Secret::new(cipher),
            prefix: u32::from_ne_bytes(prefix),
            counter: AtomicU64::new(0),
            words: WordArray::new(slots as usize)?,
            charged: WordArray::new(slots.div_ceil(CHARGED_SLOTS) as usize)?,
            charged_bytes: AtomicU64::new(0),
            budget,
        })
    }

    /// Seals a frame's page into a bounce frame, to be written to the slot.
    pub(crate) fn seal(&self, frames: &FrameAllocator, slot: SwapSlot, from: FrameId, to: FrameId) {
        self.charge(slot);
        let mut nonce = [0; NONCE_BYTES];
        nonce[..4].copy_from_slice(&self.prefix.to_le_bytes());
        nonce[4..].copy_from_slice(&self.counter.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let mut page = [0; PAGE_BYTES];
        frames.bytes().copy_out(from.home_offset(), &mut page);
        let (at, name, bytes) = (Nonce::from(nonce), slot.0.to_le_bytes(), (&mut page[..]).into());
        let tag = match &*self.cipher {
            Cipher::Aes(aes) => aes.encrypt_inout_detached(&at, &name, bytes),
            Cipher::ChaCha(chacha) => chacha.encrypt_inout_detached(&at, &name, bytes),
        }
        .expect("a page is not too long for either cipher");
        frames.bytes().copy_in(to.home_offset(), &page);
        let mut kept = [0; NONCE_BYTES + TAG_BYTES];
        kept[..NONCE_BYTES].copy_from_slice(&nonce);
        kept[NONCE_BYTES..].copy_from_slice(&tag);
        for (word, bytes) in self.words[slot.0 as usize].0.iter().zip(kept.as_chunks().0) {
            word.store(u32::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Decrypts the bytes that were read from the slot, in their frame.
    ///
    /// # Errors
    /// `Corrupt` if these are not the bytes last written to the slot. The frame then still holds the bytes
    /// that were read.
    pub(crate) fn open(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
    ) -> Result<(), Corrupt> {
        let mut kept = [0; NONCE_BYTES + TAG_BYTES];
        for (bytes, word) in kept.as_chunks_mut().0.iter_mut().zip(&self.words[slot.0 as usize].0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        let (nonce, tag) = kept.split_first_chunk::<NONCE_BYTES>().expect("as long as both");
        let tag: &[u8; TAG_BYTES] = tag.try_into().expect("the rest");
        let mut page = [0; PAGE_BYTES];
        frames.bytes().copy_out(frame.home_offset(), &mut page);
        let (at, tag, name) = (Nonce::from(*nonce), Tag::from(*tag), slot.0.to_le_bytes());
        let bytes = (&mut page[..]).into();
        match &*self.cipher {
            Cipher::Aes(aes) => aes.decrypt_inout_detached(&at, &name, bytes, &tag),
            Cipher::ChaCha(chacha) => chacha.decrypt_inout_detached(&at, &name, bytes, &tag),
        }
        .map_err(|_| Corrupt)?;
        // Every write to a fresh frame needs this fence: see `ArenaBytes`.
        fence(Ordering::Release);
        frames.bytes().copy_in(frame.home_offset(), &page);
        Ok(())
    }

    /// Charges the words of a slot. Reclaim must always get this memory, so the charge may exceed the limit.
    fn charge(&self, slot: SwapSlot) {
        let charged = &self.charged[(slot.0 / CHARGED_SLOTS) as usize];
        if charged.load(Ordering::Relaxed) == 0 && charged.swap(1, Ordering::Relaxed) == 0 {
            let bytes = u64::from(CHARGED_SLOTS) * size_of::<SealWords>() as u64;
            self.budget.charge_over(bytes);
            self.charged_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Seal {
    fn drop(&mut self) {
        self.budget.uncharge(self.charged_bytes.load(Ordering::Relaxed));
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SealWords>() == 28);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::{Backing, FrameConfig};
    use crate::units::Order;

    struct Fixture {
        frames: FrameAllocator,
        seal: Seal,
        page: FrameId,
        bounce: FrameId,
        bytes: Vec<u8>,
    }

    fn fixture(method: Method) -> Fixture {
        let config = FrameConfig::one_zone(8 << 20, Backing::BasePages);
        let frames = FrameAllocator::standalone(&config, 16 << 20).unwrap();
        let [page, bounce] = [0; 2].map(|_| frames.alloc(Order::ZERO).unwrap().into_frame());
        let bytes: Vec<u8> = (0..PAGE_BYTES).map(|at| (at % 249) as u8).collect();
        frames.bytes().copy_in(page.home_offset(), &bytes);
        let seal = Seal::new(method, 10_000, Arc::new(Budget::new(1 << 20)), &Random::default()).unwrap();
        Fixture { frames, seal, page, bounce, bytes }
    }

    impl Fixture {
        fn bytes_of(&self, frame: FrameId) -> Vec<u8> {
            let mut bytes = vec![0; PAGE_BYTES];
            self.frames.bytes().copy_out(frame.home_offset(), &mut bytes);
            bytes
        }
    }

    #[test]
    fn a_sealed_page_opens_to_what_it_was_and_shows_nothing_before() {
        for method in [Method::Aes, Method::ChaCha] {
            let f = fixture(method);
            f.seal.seal(&f.frames, SwapSlot(5), f.page, f.bounce);
            assert_eq!(f.bytes_of(f.page), f.bytes, "the page itself stays");
            let sealed = f.bytes_of(f.bounce);
            assert!(sealed.iter().zip(&f.bytes).filter(|(one, other)| one == other).count() < 64);
            assert_eq!(f.seal.open(&f.frames, SwapSlot(5), f.bounce), Ok(()));
            assert_eq!(f.bytes_of(f.bounce), f.bytes);
            f.seal.seal(&f.frames, SwapSlot(5), f.page, f.bounce);
            assert_ne!(f.bytes_of(f.bounce), sealed, "the same page is never sealed the same way twice");
        }
    }

    #[test]
    fn other_bytes_another_slot_and_other_words_do_not_open() {
        for method in [Method::Aes, Method::ChaCha] {
            let f = fixture(method);
            f.seal.seal(&f.frames, SwapSlot(6), f.page, f.bounce);
            f.seal.seal(&f.frames, SwapSlot(5), f.page, f.bounce);
            let sealed = f.bytes_of(f.bounce);
            let open = |slot: u32| f.seal.open(&f.frames, SwapSlot(slot), f.bounce);
            assert_eq!(open(6), Err(Corrupt));
            // The bytes are also not accepted with the words of their own slot, since the slot's number is
            // part of the tag.
            for (word, from) in f.seal.words[6].0.iter().zip(&f.seal.words[5].0) {
                word.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            assert_eq!(open(6), Err(Corrupt));
            for at in [0, 1, 2047, 4095].map(|at| f.bounce.home_offset() + at) {
                let byte: u8 = f.frames.bytes().load(at);
                f.frames.bytes().store(at, byte ^ 1);
                assert_eq!(open(5), Err(Corrupt));
                f.frames.bytes().store(at, byte);
            }
            for word in &f.seal.words[5].0 {
                word.fetch_xor(1 << 7, Ordering::Relaxed);
                assert_eq!(open(5), Err(Corrupt));
                word.fetch_xor(1 << 7, Ordering::Relaxed);
            }
            assert_eq!(f.bytes_of(f.bounce), sealed, "what did not open is as it was");
            assert_eq!(open(5), Ok(()));
        }
    }

    #[test]
    fn another_process_or_manager_cannot_open_it() {
        let (f, other) = (fixture(Method::probe()), fixture(Method::probe()));
        f.seal.seal(&f.frames, SwapSlot(1), f.page, f.bounce);
        for (word, from) in other.seal.words[1].0.iter().zip(&f.seal.words[1].0) {
            word.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        assert_eq!(other.seal.open(&f.frames, SwapSlot(1), f.bounce), Err(Corrupt));
    }

    #[test]
    fn words_are_charged_by_cluster_and_uncharged_at_the_end() {
        let f = fixture(Method::probe());
        let budget = Arc::clone(&f.seal.budget);
        for slot in [0, 511, 3, 512, 9999] {
            f.seal.seal(&f.frames, SwapSlot(slot), f.page, f.bounce);
        }
        assert_eq!(budget.used_bytes(), 3 * 512 * 28);
        drop(f);
        assert_eq!(budget.used_bytes(), 0);
    }
}
