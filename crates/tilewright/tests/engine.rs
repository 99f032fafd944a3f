//! One engine for many callers: the cache, and launches from several threads.

mod common;

use common::{engine, isas};
use tilewright::{DType, EngineError, Error, ops};

#[test]
fn a_plan_is_compiled_once() {
    let e = tilewright::cpu().unwrap();
    let softmax = |rows, cols| ops::softmax(rows, cols, DType::F32).plan(&e).unwrap();
    softmax(8, 100).compile().unwrap();
    softmax(8, 100).compile().unwrap();
    assert_eq!(e.cached(), 1);
    assert_eq!(e.clone().cached(), 1, "clones share the cache");
    softmax(8, 101).compile().unwrap();
    // Another nominal size may choose another plan, so it is another key.
    softmax(9, 100).compile().unwrap();
    assert_eq!(e.cached(), 3);
    let fixed = ops::softmax(8, 100, DType::F32).fixed().plan(&e).unwrap();
    assert_ne!(fixed.plan().key(), softmax(8, 100).plan().key());
    assert_eq!(softmax(8, 100).plan().key(), softmax(8, 100).plan().key());
}

#[test]
fn a_scalar_of_one_handle_is_not_another_handles() {
    let e = tilewright::cpu().unwrap();
    let scaled =
        |alpha| ops::gemm(1, 1, 1, DType::F32).alpha(alpha).plan(&e).unwrap().compile().unwrap();
    let (half, double) = (scaled(0.5), scaled(2.0));
    assert_eq!(e.cached(), 1, "alpha is a value of the launch, not of the code");
    let mut c = [0f32];
    half.run(&[&[3f32], &[4f32]], &mut c).unwrap();
    assert_eq!(c, [6.0]);
    double.run(&[&[3f32], &[4f32]], &mut c).unwrap();
    assert_eq!(c, [24.0]);
}

#[test]
fn threads_share_a_handle() {
    for isa in isas() {
        let e = engine(isa);
        let product = ops::gemm(33, 47, 29, DType::F32).plan(&e).unwrap().compile().unwrap();
        let rows = ops::row_sum(64, 100, DType::F32).plan(&e).unwrap().compile().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (product, rows) = (&product, &rows);
                scope.spawn(move || {
                    let factor = thread as f32 + 1.0;
                    for _ in 0..50 {
                        let (a, b) = (vec![factor; 33 * 29], vec![1f32; 29 * 47]);
                        let mut c = vec![0f32; 33 * 47];
                        product.run(&[&a, &b], &mut c).unwrap();
                        assert!(c.iter().all(|v| *v == 29.0 * factor));
                        let mut y = [0f32; 64];
                        rows.run(&[&vec![factor; 6400]], &mut y).unwrap();
                        assert!(y.iter().all(|v| *v == 100.0 * factor));
                    }
                });
            }
        });
    }
}

#[test]
fn errors_are_typed() {
    let e = tilewright::cpu().unwrap();
    let wrong = ops::softmax(4, 4, DType::I32).plan(&e);
    assert!(matches!(wrong, Err(Error::Op(_))));
    let space = tilewright::SpaceOptions { unroll: Some(vec![17]), ..Default::default() };
    let wrong = ops::softmax(4, 4, DType::F32).space(space).plan(&e);
    let Err(Error::Engine(error)) = wrong else { panic!("an unroll of 17 was planned") };
    assert!(matches!(*error, EngineError::Plan(_)), "{error}");
    assert!(error.to_string().contains("unroll-range"), "{error}");
    assert!(matches!(tilewright::parse("program"), Err(Error::Text(_))));
}
