//! Products on every instruction set, and that neither threads nor cuts change a bit.

#[path = "products/int8.rs"]
mod int8;

use bytemuck::Pod;
use djinn_cpu::{CpuConfig, CpuDevice, CpuKernels, Math};
use djinn_device::args::{Linear, Weight};
use djinn_device::reference::encode;
use djinn_device::{
    BlockFormat, Buffer, CpuOps, DType, Device, Encoding, HostLinear, HostWeight, Ops, Space, Stream,
};
use half::{bf16, f16};

/// Numbers in -1..1 that look random.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(next(&seed), next)
        .map(|x| (x >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .take(len)
        .collect()
}

/// Blocks of any bytes, with scales that are numbers of usual size.
fn blocks(format: BlockFormat, count: usize, seed: u32) -> Vec<u8> {
    let bytes = format.bytes() as usize;
    let mut blocks: Vec<u8> = noise(count * bytes, seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    let scales = noise(count * 2, seed + 1);
    for (block, scales) in blocks.chunks_mut(bytes).zip(scales.chunks(2)) {
        let mut scales = scales.iter();
        format.set_scales(block, || scales.next().expect("a block has two scales at most") / 64.0);
    }
    blocks
}

/// Rows of `k` elements in these blocks, each padded with bytes of a NaN.
fn padded(format: BlockFormat, blocks: &[u8], k: usize) -> Vec<u8> {
    let row = format.blocks_bytes(k as u64).unwrap() as usize;
    let pad = |row: &[u8]| [row, &vec![0xff; row.len().next_multiple_of(16) - row.len()]].concat();
    blocks.chunks(row).flat_map(pad).collect()
}

/// The size of the difference, as a share of the size of `want`.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A matrix as it is stored.
#[derive(Clone, Copy)]
struct Stored<'a>(Encoding, DType, &'a [u8]);

/// A device with one stream.
struct Rig {
    device: CpuDevice,
    stream: Stream,
}

impl Rig {
    /// With an instruction set of `math`, the best without.
    fn new(math: Math, instructions: Option<&'static str>, threads: usize) -> Rig {
        let config = CpuConfig { math, threads, instructions, ..CpuConfig::default() };
        let device = CpuDevice::new(config).unwrap();
        Rig { stream: device.stream().unwrap(), device }
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        let [from, to] =
            [Space::Host, Space::Device].map(|s| self.device.alloc(s, bytes.len() as u64).unwrap());
        self.device.write_host(from.span(), |to| to.copy_from_slice(bytes));
        self.device.copy(self.stream, from.span(), to.span()).unwrap();
        self.device.sync(self.stream).unwrap();
        self.device.free(from);
        to
    }

    /// `x` times the transpose of `n` rows of `k` elements.
    fn product(&self, x: &[f32], weight: Stored<'_>, bias: Option<&[f32]>, [k, n]: [usize; 2]) -> Vec<f32> {
        let rows = x.len() / k;
        let Stored(encoding, dtype, bytes) = weight;
        let [x, weight] = [bytemuck::cast_slice(x), bytes].map(|bytes| self.upload(bytes));
        let bias = bias.map(|bias| self.upload(bytemuck::cast_slice(bias)));
        let out = self.upload(bytemuck::cast_slice(&vec![f32::NAN; rows * n]));
        let product = Linear {
            x: x.span(),
            weight: Weight { span: weight.span(), dtype, encoding },
            bias: bias.map(|bias| Weight::plain(bias.span(), DType::F32)),
            out: out.span(),
            k: k as u32,
            n: n as u32,
            out_width: n as u32,
            out_column: 0,
            rows: rows as u32,
        };
        self.device.linear(self.stream, &product).unwrap();
        let back = self.device.alloc(Space::Host, out.len()).unwrap();
        self.device.copy(self.stream, out.span(), back.span()).unwrap();
        self.device.sync(self.stream).unwrap();
        let result = self.device.read_host(back.span(), |bytes| bytemuck::cast_slice(bytes).to_vec());
        [x, weight, out, back].into_iter().chain(bias).for_each(|buffer| self.device.free(buffer));
        result
    }
}

fn check<E: Pod>(dtype: DType, narrow: fn(f32) -> E, widen: fn(E) -> f32) {
    for set in Math::Fast.instruction_sets() {
        let [many, alone] = [3, 1].map(|threads| Rig::new(Math::Fast, Some(set), threads));
        // The last does not fit one block of activations.
        for (rows, k, n) in [(1, 1, 1), (5, 33, 6), (13, 100, 33), (7, 577, 130), (200, 1030, 9)] {
            let x = noise(rows * k, 1);
            let weight: Vec<E> = noise(n * k, 2).into_iter().map(narrow).collect();
            let stored = Stored(Encoding::Plain, dtype, bytemuck::cast_slice(&weight));
            let got = many.product(&x, stored, None, [k, n]);
            let want: Vec<f32> = x
                .chunks(k)
                .flat_map(|x| {
                    let dot =
                        |w: &[E]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(widen(w))).sum();
                    weight.chunks(k).map(move |w| {
                        let sum: f64 = dot(w);
                        sum as f32
                    })
                })
                .collect();
            let error = error(&got, &want);
            assert!(error < 1e-6, "{set} {rows}x{k}x{n}: {error:e}");
            assert!(got == alone.product(&x, stored, None, [k, n]), "threads change bits");
            // The first is in a full tile of several, the last one mostly not.
            for row in [0, rows - 1] {
                let one = alone.product(&x[row * k..(row + 1) * k], stored, None, [k, n]);
                assert!(got[row * n..(row + 1) * n] == one, "the batch changes bits");
            }
        }
    }
}

#[test]
fn all_instruction_sets_match_the_reference() {
    check::<f32>(DType::F32, |x| x, |x| x);
    check(DType::F16, f16::from_f32, f16::to_f32);
    check(DType::BF16, bf16::from_f32, bf16::to_f32);
}

#[test]
fn rows_in_blocks_have_the_bits_of_decoded_ones() {
    for set in Math::Fast.instruction_sets() {
        let rig = Rig::new(Math::Fast, Some(set), 3);
        for format in BlockFormat::ALL {
            let elements = format.elements() as usize;
            for (rows, blocks_of_row, n) in [(1, 3, 37), (1, 11, 5), (7, 1, 6), (64, 11, 9), (200, 5, 5)] {
                let k = blocks_of_row * elements;
                let stored = blocks(format, n * blocks_of_row, 7);
                let mut decoded = vec![0.0; n * k];
                format.decode(&stored, &mut decoded);
                let x = noise(rows * k, 1);
                let stored = padded(format, &stored, k);
                let stored = Stored(Encoding::Blocks(format), DType::F32, &stored);
                let got = rig.product(&x, stored, None, [k, n]);
                let decoded = Stored(Encoding::Plain, DType::F32, bytemuck::cast_slice(&decoded));
                let want = rig.product(&x, decoded, None, [k, n]);
                assert!(want.iter().all(|x| x.is_finite()));
                assert!(bits(&got) == bits(&want), "{set} {rows}x{k}x{n} {format:?}");
            }
        }
    }
}

/// Products of all types, of one and of several rows, shared out together, have the bits that they have alone.
#[test]
fn products_at_once_have_the_bits_of_each_alone() {
    let cpu = CpuKernels::new(3).unwrap();
    let shapes = [(1, 64, 37), (3, 577, 8), (8, 256, 200), (1, 2048, 96)];
    let types = [DType::F32, DType::F16, DType::BF16];
    let cases = shapes.iter().flat_map(|&shape| types.map(|dtype| (shape, dtype)));
    /// Rows, k and n; the type; the activations and the weight.
    type Case = ((usize, usize, usize), DType, Vec<f32>, Vec<u8>);
    let weights: Vec<Case> = cases
        .zip(1..)
        .map(|(((rows, k, n), dtype), seed)| {
            let (x, weight) = (noise(rows * k, seed), encode(&noise(n * k, seed + 100), dtype));
            ((rows, k, n), dtype, x, weight)
        })
        .collect();
    let blank: Vec<Vec<f32>> = weights.iter().map(|((rows, _, n), ..)| vec![f32::NAN; rows * n]).collect();
    let [mut alone, mut together] = [blank.clone(), blank];
    fn linear<'a>(of: &'a Case, out: &'a mut [f32]) -> HostLinear<'a> {
        let ((_, k, n), dtype, x, bytes) = of;
        let weight = HostWeight { bytes, dtype: *dtype, encoding: Encoding::Plain };
        let [k, n] = [k, n].map(|&n| n as u32);
        HostLinear { x, weight, bias: None, out, k, n, out_width: n, out_column: 0 }
    }
    for (of, out) in weights.iter().zip(&mut alone) {
        cpu.linears(vec![linear(of, out)]);
    }
    cpu.linears(weights.iter().zip(&mut together).map(|(of, out)| linear(of, out)).collect());
    for (case, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert!(alone.iter().all(|x| x.is_finite()), "product {case}");
        assert_eq!(bits(alone), bits(together), "product {case}");
    }
    cpu.linears(Vec::new());
}
