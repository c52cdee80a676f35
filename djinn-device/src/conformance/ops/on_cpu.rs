//! Checks of [`Ops::linear_on_cpu`] and [`Ops::experts_on_cpu`], on devices that have the CPU's help.

use super::encoded::Matrix;
use super::rig::{DTYPES, Rig, same_bits};
use crate::args::{CpuExperts, CpuSlots, ExpertLinear, Group, Linear, SiluMul, Weight};
use crate::reference::encode;
use crate::{Capture, DType, Ops, Result, Space, Span, Stream};
use std::ops::Range;

/// A product with a weight in host memory, in tiles of these rows.
const TILES: [usize; 2] = [37, 20];
const N: usize = TILES[0] + TILES[1];

/// Inputs come by a copy of the stream, and results go by one.
struct Case {
    x: Span,
    host_x: Span,
    products: Vec<Linear>,
    host_out: Span,
    out: Span,
}

impl Case {
    fn new<D: Ops>(rig: &mut Rig<D>, matrix: &Matrix, x: &[f32]) -> Case {
        let (rows, len) = (x.len() / matrix.columns, x.len() / matrix.columns * N);
        let (on_device, out) = (rig.upload(x), rig.blank_f32(len));
        let [host_x, host_out] = [x.len(), len].map(|len| rig.upload_to(Space::Host, vec![0xff; len * 4]));
        let product = |rig: &mut Rig<D>, first: usize, n: usize, bias: Option<DType>| {
            let weight = matrix.upload(rig, Space::Host, first, n);
            let bias = bias.map(|dtype| {
                let bytes = encode(&rig.random.floats(n), dtype);
                Weight::plain(rig.upload_to(Space::Host, bytes), dtype)
            });
            let (k, n, rows) = (matrix.columns as u32, n as u32, rows as u32);
            Linear {
                x: host_x,
                weight,
                bias,
                out: host_out,
                k,
                n,
                out_width: N as u32,
                out_column: first as u32,
                rows,
            }
        };
        let products =
            vec![product(rig, 0, TILES[0], Some(matrix.dtype)), product(rig, TILES[0], TILES[1], None)];
        products.iter().for_each(Linear::check);
        Case { x: on_device, host_x, products, host_out, out }
    }

    fn enqueue<D: Ops>(&self, device: &D, stream: Stream) -> Result<()> {
        device.copy_promptly(stream, self.x, self.host_x)?;
        device.linear_on_cpu(stream, &self.products)?;
        device.copy_promptly(stream, self.host_out, self.out)
    }

    /// Puts what the calls must write into the image.
    fn expect<D: Ops>(&self, rig: &mut Rig<D>) {
        rig.expect_copy(self.x, self.host_x);
        self.products.iter().for_each(|&product| rig.expect(product));
        rig.expect_copy(self.host_out, self.out);
    }
}

/// Matrices of all types and encodings, with rows of 256 elements, or of 577 where they may be.
fn matrices<D: Ops>(rig: &mut Rig<D>) -> Vec<Matrix> {
    if !rig.device.info().cpu_products {
        return Vec::new();
    }
    let mut matrices: Vec<Matrix> = Vec::new();
    for columns in [256, 577] {
        for dtype in DTYPES {
            matrices.push(Matrix::plain(rig, dtype, [N, columns]));
        }
    }
    for &encoding in rig.device.info().encodings {
        matrices.push(Matrix::random(rig, encoding, N, 256));
    }
    matrices
}

pub(super) fn matches_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for matrix in matrices(rig) {
        for rows in [1, 3, 8] {
            let x = rig.random.floats(rows * matrix.columns);
            let case = Case::new(rig, &matrix, &x);
            rig.enqueued(case.enqueue(&rig.device, rig.stream));
            case.expect(rig);
            rig.matches(&format!("{rows} rows {}", matrix.name("on the CPU,")), matrix.stored());
        }
    }
}

pub(super) fn is_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    for matrix in matrices(rig) {
        let x = rig.random.floats(8 * matrix.columns);
        let of = |rig: &mut Rig<D>, rows: Range<usize>| {
            let case = Case::new(rig, &matrix, &x[rows.start * matrix.columns..rows.end * matrix.columns]);
            // Without the bias, which is another one in each case.
            let products = case.products.iter().map(|&product| Linear { bias: None, ..product }).collect();
            let case = Case { products, ..case };
            rig.enqueued(case.enqueue(&rig.device, rig.stream));
            rig.take(case.out)
        };
        let all = of(rig, 0..8);
        for rows in [0..1, 7..8, 2..5] {
            let part = of(rig, rows.clone());
            same_bits(
                &format!("rows {rows:?} {}", matrix.name("on the CPU,")),
                &part,
                &all[rows.start * N..rows.end * N],
            );
        }
    }
}

/// Replays read what is in memory then.
pub(super) fn is_replayed<D: Ops>(rig: &mut Rig<D>) {
    if !rig.device.info().captures {
        return;
    }
    for matrix in matrices(rig).into_iter().take(2) {
        let x = rig.random.floats(3 * matrix.columns);
        let case = Case::new(rig, &matrix, &x);
        let captured: Result<Capture> =
            rig.device.capture(&[rig.stream], || case.enqueue(&rig.device, rig.stream));
        let capture = captured.expect("room for a capture");
        for _ in 0..2 {
            let other = rig.random.floats(x.len());
            let other = rig.upload(&other);
            rig.enqueued(rig.device.copy(rig.stream, other, case.x));
            rig.expect_copy(other, case.x);
            rig.enqueued(rig.device.replay(capture));
            case.expect(rig);
        }
        rig.matches(&format!("replayed {}", matrix.name("on the CPU,")), matrix.stored());
        rig.device.free_capture(capture);
    }
}

/// Experts' blocks in host memory, with what goes there before them and comes back after, in turn with a product there.
struct ExpertsCase {
    x: Span,
    host_x: Span,
    group: Group,
    work: CpuExperts,
    y: Span,
    out: Span,
    product: Case,
}

impl ExpertsCase {
    const EXPERTS: usize = 5;
    const HIDDEN: usize = 64;
    const INNER: usize = 96;

    fn new<D: Ops>(rig: &mut Rig<D>, [rows, top_k]: [usize; 2]) -> Self {
        let (slots, experts, hidden, inner) = (rows * top_k, Self::EXPERTS, Self::HIDDEN, Self::INNER);
        let host = |rig: &mut Rig<D>, words: usize| rig.upload_to(Space::Host, vec![0xff; 4 * words]);
        let ids = rig.random.indices(slots, experts);
        let ids = rig.upload(&ids);
        let (order, starts) = (host(rig, slots), host(rig, experts + 1));
        // All slots, so that a row's are of one expert at times.
        let (cpu, of_cpu) = (CpuSlots::NONE, false);
        let group = Group { ids, order, starts, experts: experts as u32, slots: slots as u32, cpu, of_cpu };
        let x = rig.random.floats(rows * hidden);
        let (x, host_x) = (rig.upload(&x), host(rig, rows * hidden));
        let [up, act, y] = [2 * inner, inner, hidden].map(|width| host(rig, slots * width));
        let of =
            |x, out, slots_per_row| Products { x, out, slots_per_row, order, starts, slots: slots as u32 };
        let work = CpuExperts {
            up: of(host_x, up, top_k as u32).random(rig, [hidden, 2 * inner]),
            act: SiluMul { x: up, out: act, width: inner as u32, rows: slots as u32, read_by: None },
            down: of(act, y, 1).random(rig, [inner, hidden]),
        };
        work.check();
        let matrix = Matrix::plain(rig, DType::BF16, [N, 256]);
        let of_product = rig.random.floats(rows * 256);
        let product = Case::new(rig, &matrix, &of_product);
        ExpertsCase { x, host_x, group, work, y, out: rig.blank_f32(slots * hidden), product }
    }

    fn enqueue<D: Ops>(&self, device: &D, stream: Stream) -> Result<()> {
        device.copy_promptly(stream, self.x, self.host_x)?;
        device.group(stream, &self.group)?;
        device.experts_on_cpu(stream, &self.work)?;
        device.fill(stream, self.out, 0xff)?;
        device.await_cpu(stream)?;
        device.copy_promptly(stream, self.y, self.out)?;
        self.product.enqueue(device, stream)
    }

    fn expect<D: Ops>(&self, rig: &mut Rig<D>) {
        rig.expect_copy(self.x, self.host_x);
        rig.expect(self.group);
        self.work.up.iter().for_each(|&product| rig.expect(product));
        rig.expect(self.work.act);
        self.work.down.iter().for_each(|&product| rig.expect(product));
        rig.expect_copy(self.y, self.out);
        self.product.expect(rig);
    }
}

/// Products of all experts of a case.
struct Products {
    x: Span,
    out: Span,
    slots_per_row: u32,
    order: Span,
    starts: Span,
    slots: u32,
}

impl Products {
    /// With random weights, each in two tiles.
    fn random<D: Ops>(self, rig: &mut Rig<D>, [k, out_width]: [usize; 2]) -> Vec<ExpertLinear> {
        let Products { x, out, slots_per_row, order, starts, slots } = self;
        let parts = [(0, out_width / 4), (out_width / 4, out_width)];
        let tiles = (0..ExpertsCase::EXPERTS).flat_map(|expert| parts.map(|part| (expert, part)));
        let mut product = |(expert, (first, end)): (usize, (usize, usize))| {
            let weight = encode(&rig.random.floats((end - first) * k), DType::BF16);
            ExpertLinear {
                x,
                weight: Weight::plain(rig.upload_to(Space::Host, weight), DType::BF16),
                order,
                starts,
                out,
                k: k as u32,
                n: (end - first) as u32,
                out_width: out_width as u32,
                out_column: first as u32,
                expert: expert as u32,
                slots_per_row,
                slots,
            }
        };
        tiles.map(&mut product).collect()
    }
}

/// Experts' blocks give what the reference does: once, and replayed.
pub(super) fn experts_match_the_reference<D: Ops>(rig: &mut Rig<D>) {
    if !rig.device.info().cpu_products {
        return;
    }
    for shape @ [rows, top_k] in [[1, 2], [3, 2], [8, 3]] {
        for &replays in &[0, 2][..1 + usize::from(rig.device.info().captures)] {
            let case = ExpertsCase::new(rig, shape);
            let (device, stream) = (&rig.device, rig.stream);
            if replays == 0 {
                rig.enqueued(case.enqueue(device, stream));
            } else {
                let capture: Result<Capture> = device.capture(&[stream], || case.enqueue(device, stream));
                let capture = capture.expect("room for a capture");
                (0..replays).for_each(|_| rig.enqueued(device.replay(capture)));
                device.sync(stream).expect("no failure");
                device.free_capture(capture);
            }
            case.expect(rig);
            rig.compare(case.product.out, "a product after experts", DType::BF16);
            rig.matches_in(case.out, &format!("{rows}x{top_k} slots on the CPU"), DType::BF16);
        }
    }
}
