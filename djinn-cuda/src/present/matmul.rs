//! Matrix products that Djinn's kernels do not take, by cuBLASLt.
//!
//! `out[rows, n] = x[rows, k] · weight[n, k]ᵀ`, all row-major, is in cuBLASLt's column-major terms
//! `D[n, rows] = op(A)[n, k] · B[k, rows]` with `A = weight` transposed. Inputs are of one type, the output and
//! all sums f32.
//!
//! Results are reproducible. The algorithm is a function of the shape alone: the alignment that the heuristic
//! is told is the least that the shape implies, never that of the addresses; split sums are only allowed
//! through the workspace, in a fixed order, never by atomics; and the workspace is always the same size. A
//! shape's algorithm is moreover that of its class of rows, where it serves, so that most results do not
//! depend on the number of rows either.
#![allow(unsafe_code, reason = "calls into cuBLASLt on handles that this module owns")]

use crate::present::memory::Place;
use crate::present::scratch::CUBLAS_BYTES;
use crate::present::stream::RawStream;
use crate::{Error, Result};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use djinn_device::DType;
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::rc::Rc;

/// The classes of rows, by the rows that the algorithm is chosen for.
const CLASSES: [u32; 4] = [64, 128, 256, 512];

/// `cublasOperation_t` of a transposed input; the bindings leave the type out.
static CUBLAS_OP_T: u32 = 1;

/// What decides the choice of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) n: u32,
    /// Columns of the output matrix.
    pub(crate) out_width: u32,
    /// The first column that is written.
    pub(crate) out_column: u32,
    /// The type of `x` and of the weight.
    pub(crate) dtype: DType,
}

impl Shape {
    /// The alignment of every row's first output, in bytes, if the matrix is aligned to 16.
    fn out_align(self) -> u32 {
        let bytes = (u64::from(self.out_column) | u64::from(self.out_width) | 4) * 4;
        1 << bytes.trailing_zeros().min(4)
    }

    /// The same product with as many rows as its class is tuned for.
    fn class(self) -> Shape {
        let rows = CLASSES.into_iter().find(|&class| self.rows <= class).unwrap_or(CLASSES[3]);
        Shape { rows, ..self }
    }
}

/// cuBLASLt, and the algorithms chosen so far.
pub(crate) struct Matmul {
    handle: Handle,
    /// `None`: the library has no algorithm.
    plans: RefCell<HashMap<Shape, Option<Rc<Plan>>>>,
}

// SAFETY: the handles may be used from any thread, one at a time; every `Rc` lies in the map, and those lent
// to a call are gone when it returns.
unsafe impl Send for Matmul {}

impl Matmul {
    /// A handle of the current context.
    pub(crate) fn new() -> Result<Self> {
        let handle = result::create_handle().map(Handle).map_err(failed("cublasLtCreate"))?;
        Ok(Matmul { handle, plans: RefCell::default() })
    }

    /// Enqueues a product, and returns whether the library has an algorithm for the shape. If not, nothing is enqueued.
    /// `x` and `weight` hold exactly their matrices, `out` the whole output matrix.
    pub(crate) fn product(
        &self,
        stream: &RawStream,
        shape: Shape,
        [x, weight, out, workspace]: [Place; 4],
    ) -> Result<bool> {
        let Some(plan) = self.plan(shape)? else { return Ok(false) };
        let out = out.slice(u64::from(shape.out_column) * 4, out.len() - u64::from(shape.out_column) * 4);
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: the plan's descriptors are alive and describe the places, whose sizes `Linear::check` knows
        // to be the shape's; places are live memory, kept until the product is done by the device's contract.
        // The scalars are read during the call. With a factor of zero `out` is not read.
        let outcome = unsafe {
            result::matmul(
                self.handle.0,
                plan.operation.0,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                weight.bytes(),
                plan.weight.0,
                x.bytes(),
                plan.x.0,
                out.bytes(),
                plan.out.0,
                out.bytes(),
                plan.out.0,
                &plan.algorithm,
                workspace.bytes(),
                CUBLAS_BYTES as usize,
                stream.raw().cast(),
            )
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(false),
            Err(error) => Err(failed("cublasLtMatmul")(error)),
        }
    }

    /// The shape's plan: with the algorithm of its class if that can do the shape, else with its own.
    fn plan(&self, shape: Shape) -> Result<Option<Rc<Plan>>> {
        if let Some(plan) = self.plans.borrow().get(&shape) {
            return Ok(plan.clone());
        }
        let class = shape.class();
        let lead = if class == shape { None } else { self.plan(class)? };
        let plan = Plan::new(&self.handle, shape, lead.map(|plan| plan.algorithm))?.map(Rc::new);
        self.plans.borrow_mut().insert(shape, plan.clone());
        Ok(plan)
    }
}

/// How one shape is computed.
struct Plan {
    operation: Operation,
    weight: Layout,
    x: Layout,
    out: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Plan {
    fn new(handle: &Handle, shape: Shape, lead: Option<sys::cublasLtMatmulAlgo_t>) -> Result<Option<Plan>> {
        let Shape { rows, k, n, out_width, .. } = shape;
        let dtype = match shape.dtype {
            DType::F16 => sys::cudaDataType::CUDA_R_16F,
            DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
            DType::F32 => sys::cudaDataType::CUDA_R_32F,
            DType::Int8 | DType::U32 => unreachable!("no type of weights"),
        };
        let operation = Operation::new()?;
        let weight = Layout::new(dtype, k, n, k)?;
        let x = Layout::new(dtype, k, rows, k)?;
        let out = Layout::new(sys::cudaDataType::CUDA_R_32F, n, rows, out_width)?;
        let layouts = [&weight, &x, &out];
        let led = lead.filter(|algorithm| serves(handle, &operation, layouts, algorithm));
        let algorithm = match led {
            Some(algorithm) => Some(algorithm),
            None => choose(handle, &operation, layouts, shape.out_align())?,
        };
        Ok(algorithm.map(|algorithm| Plan { operation, weight, x, out, algorithm }))
    }
}

/// Whether an algorithm chosen for another number of rows can do these.
fn serves(
    handle: &Handle,
    operation: &Operation,
    [weight, x, out]: [&Layout; 3],
    algorithm: &sys::cublasLtMatmulAlgo_t,
) -> bool {
    let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
    let place = found.as_mut_ptr();
    // SAFETY: all descriptors are alive, the algorithm came from the library, and `place` is ours.
    let status = unsafe {
        sys::cublasLtMatmulAlgoCheck(handle.0, operation.0, weight.0, x.0, out.0, out.0, algorithm, place)
    };
    if status.result().is_err() {
        return false;
    }
    // SAFETY: all-zero bytes are valid for every field, and the library filled them in.
    let found = unsafe { found.assume_init() };
    found.state.result().is_ok() && found.workspaceSize as u64 <= CUBLAS_BYTES
}

/// The library's best algorithm under our conditions.
fn choose(
    handle: &Handle,
    operation: &Operation,
    [weight, x, out]: [&Layout; 3],
    out_align: u32,
) -> Result<Option<sys::cublasLtMatmulAlgo_t>> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference::new()?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &CUBLAS_BYTES)?;
    let reduction = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &16_u32)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &16_u32)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out_align)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out_align)?;
    // SAFETY: all descriptors are alive.
    let found = unsafe {
        result::get_matmul_algo_heuristic(handle.0, operation.0, weight.0, x.0, out.0, out.0, preference.0)
    };
    match found {
        Ok(found) => Ok(Some(found.algo)),
        Err(CublasError(
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
            | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE,
        )) => Ok(None),
        Err(error) => Err(failed("cublasLtMatmulAlgoGetHeuristic")(error)),
    }
}

fn failed(call: &'static str) -> impl FnOnce(CublasError) -> Error {
    move |error| Error::Cublas { call, status: format!("{:?}", error.0) }
}

/// The library's handle.
struct Handle(sys::cublasLtHandle_t);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: alive, and not used again. Nothing depends on the outcome.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// `D = Aᵀ B` with f32 sums; f32 inputs are not rounded (no TF32).
struct Operation(sys::cublasLtMatmulDesc_t);

impl Operation {
    fn new() -> Result<Self> {
        let (sums, scalars) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F);
        let raw = result::create_matmul_desc(sums, scalars).map_err(failed("cublasLtMatmulDescCreate"))?;
        let operation = Operation(raw);
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: the descriptor is alive; the attribute is a 32-bit integer, read during the call.
        unsafe {
            result::set_matmul_desc_attribute(
                raw,
                attribute,
                (&raw const CUBLAS_OP_T).cast(),
                size_of::<u32>(),
            )
        }
        .map_err(failed("cublasLtMatmulDescSetAttribute"))?;
        Ok(operation)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: alive, and not used again.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// A column-major matrix.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(dtype: sys::cudaDataType, rows: u32, columns: u32, stride: u32) -> Result<Self> {
        result::create_matrix_layout(dtype, rows.into(), columns.into(), stride.into())
            .map(Layout)
            .map_err(failed("cublasLtMatrixLayoutCreate"))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: alive, and not used again.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// Conditions on an algorithm.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        result::create_matmul_pref().map(Preference).map_err(failed("cublasLtMatmulPreferenceCreate"))
    }

    fn set<T: Copy>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        let value: *const T = value;
        // SAFETY: the descriptor is alive; the library checks the size and reads the value during the call.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, value.cast(), size_of::<T>()) }
            .map_err(failed("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: alive, and not used again.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
