//! An input, read from front to back.

/// What is left of an input. Behind its end there are zeros.
#[derive(Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// A whole input.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes }
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let have = self.rest.len().min(N);
        out[..have].copy_from_slice(&self.rest[..have]);
        self.rest = &self.rest[have..];
        out
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// The next bit of chance.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// A number below `n`, which is not above 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.u8()) % n
    }

    /// One of `all`; the first one most often, since inputs are made of zeros behind their ends.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Up to `n` bytes, as many as are left.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(self.rest.len().min(n));
        self.rest = rest;
        taken
    }

    /// A number of 32 bits: small, at an edge, or any.
    pub fn number(&mut self) -> u32 {
        const EDGES: [u32; 8] = [
            0x7f,
            0xff,
            0xffff,
            0xff_ffff,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_fffe,
            u32::MAX,
        ];
        match self.u8() {
            small @ 0..=127 => small.into(),
            edge @ 128..=191 => EDGES[usize::from(edge) % EDGES.len()],
            _ => self.u32(),
        }
    }
}
