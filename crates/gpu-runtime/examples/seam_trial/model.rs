// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model's shape and random weights, and a reference that computes it in f32 or f64 without any of the engine.

use std::ops::{Add, Div, Mul, Sub};

/// Shape of the chain.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rot: usize,
    pub ffn: usize,
    pub vocab: usize,
    pub eps: f32,
}

/// Everything a multiple of 8, K over one segment of 256, more tokens than one band of candidates.
pub const PLAIN: Shape = Shape {
    layers: 3,
    hidden: 384,
    heads: 6,
    kv_heads: 2,
    head_dim: 64,
    rot: 64,
    ffn: 704,
    vocab: 5000,
    eps: 1e-5,
};

/// No extent is a multiple of what kernels like.
pub const ODD: Shape = Shape {
    layers: 2,
    hidden: 103,
    heads: 3,
    kv_heads: 1,
    head_dim: 50,
    rot: 36,
    ffn: 301,
    vocab: 257,
    eps: 1e-6,
};

/// A tensor `[rows, cols]`, rounded to its format already.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f32>,
}

#[derive(Debug)]
pub struct Layer {
    pub attn_norm: Tensor,
    pub qkv: Tensor,
    pub qkv_bias: Tensor,
    pub q_norm: Tensor,
    pub k_norm: Tensor,
    pub o: Tensor,
    pub ffn_norm: Tensor,
    pub gate_up: Tensor,
    pub down: Tensor,
}

#[derive(Debug)]
pub struct Model {
    pub shape: Shape,
    pub embed: Tensor,
    pub layers: Vec<Layer>,
    pub norm: Tensor,
    pub head: Tensor,
    pub inv_freq: Vec<f32>,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In [-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn tensor(
        &mut self,
        rows: usize,
        cols: usize,
        around: f32,
        spread: f32,
        round: fn(f32) -> f32,
    ) -> Tensor {
        let values = (0..rows * cols)
            .map(|_| round(around + spread * self.unit()))
            .collect();
        Tensor { rows, cols, values }
    }
}

pub fn to_bf16(v: f32) -> f32 {
    half::bf16::from_f32(v).to_f32()
}

pub fn to_f16(v: f32) -> f32 {
    half::f16::from_f32(v).to_f32()
}

impl Model {
    pub fn random(shape: Shape, seed: u64) -> Model {
        let mut r = Random(seed);
        let same = |v: f32| v;
        let (h, f) = (shape.hidden, shape.ffn);
        let (q, all) = (
            shape.heads * shape.head_dim,
            (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
        );
        let spread = |k: usize| (3.0 / k as f32).sqrt();
        let layers = (0..shape.layers)
            .map(|_| Layer {
                attn_norm: r.tensor(1, h, 1.0, 0.3, same),
                qkv: r.tensor(all, h, 0.0, spread(h), to_bf16),
                qkv_bias: r.tensor(1, all, 0.0, 0.2, same),
                q_norm: r.tensor(1, shape.head_dim, 1.0, 0.3, same),
                k_norm: r.tensor(1, shape.head_dim, 1.0, 0.3, same),
                o: r.tensor(h, q, 0.0, spread(q), to_f16),
                ffn_norm: r.tensor(1, h, 1.0, 0.3, same),
                gate_up: r.tensor(2 * f, h, 0.0, spread(h), to_bf16),
                down: r.tensor(h, f, 0.0, spread(f), same),
            })
            .collect();
        let rot = shape.rot as f64;
        Model {
            shape,
            embed: r.tensor(shape.vocab, h, 0.0, 1.0, to_bf16),
            layers,
            norm: r.tensor(1, h, 1.0, 0.3, same),
            head: r.tensor(shape.vocab, h, 0.0, spread(h), to_bf16),
            inv_freq: (0..shape.rot / 2)
                .map(|i| 10_000f64.powf(-2.0 * i as f64 / rot) as f32)
                .collect(),
        }
    }

    /// Logits of every position of a sequence.
    pub fn logits<T: Real>(&self, tokens: &[u32]) -> Vec<Vec<T>> {
        let s = &self.shape;
        let mut res: Vec<Vec<T>> = tokens
            .iter()
            .map(|t| row(&self.embed, *t as usize))
            .collect();
        for layer in &self.layers {
            let mut keys: Vec<Vec<T>> = Vec::new();
            let mut values: Vec<Vec<T>> = Vec::new();
            for (position, res) in res.iter_mut().enumerate() {
                let n = rms(res, &layer.attn_norm, s.eps);
                let mut qkv = times(&layer.qkv, &n);
                for (v, b) in qkv.iter_mut().zip(&layer.qkv_bias.values) {
                    *v = *v + T::of(*b);
                }
                for (head, x) in qkv
                    .chunks_exact_mut(s.head_dim)
                    .take(s.heads + s.kv_heads)
                    .enumerate()
                {
                    let w = if head < s.heads {
                        &layer.q_norm
                    } else {
                        &layer.k_norm
                    };
                    let n = rms(x, w, s.eps);
                    x.copy_from_slice(&n);
                    self.rotate(x, position);
                }
                let (q, kv) = qkv.split_at(s.heads * s.head_dim);
                let (k, v) = kv.split_at(s.kv_heads * s.head_dim);
                keys.push(k.to_vec());
                values.push(v.to_vec());
                let a = self.attend(q, &keys, &values);
                add(res, &times(&layer.o, &a));
                let n = rms(res, &layer.ffn_norm, s.eps);
                let gu = times(&layer.gate_up, &n);
                let (g, u) = gu.split_at(s.ffn);
                let one = T::of(1.0);
                let h: Vec<T> = g
                    .iter()
                    .zip(u)
                    .map(|(g, u)| *g / (one + (T::of(0.0) - *g).exp()) * *u)
                    .collect();
                add(res, &times(&layer.down, &h));
            }
        }
        res.iter()
            .map(|r| times(&self.head, &rms(r, &self.norm, s.eps)))
            .collect()
    }

    fn rotate<T: Real>(&self, x: &mut [T], position: usize) {
        let half = self.shape.rot / 2;
        for i in 0..half {
            // The angle is an f32 by specification.
            let angle = position as f32 * self.inv_freq[i];
            let (sin, cos) = T::sin_cos(angle);
            let (a, b) = (x[i], x[i + half]);
            x[i] = a * cos - b * sin;
            x[i + half] = b * cos + a * sin;
        }
    }

    fn attend<T: Real>(&self, q: &[T], keys: &[Vec<T>], values: &[Vec<T>]) -> Vec<T> {
        let s = &self.shape;
        let scale = T::of(self.scale());
        let mut out = Vec::new();
        for head in 0..s.heads {
            let at = head / (s.heads / s.kv_heads) * s.head_dim;
            let q = &q[head * s.head_dim..(head + 1) * s.head_dim];
            let scores: Vec<T> = keys
                .iter()
                .map(|k| dot(q, &k[at..at + s.head_dim]) * scale)
                .collect();
            let top = scores
                .iter()
                .fold(scores[0], |a, b| if *b > a { *b } else { a });
            let weights: Vec<T> = scores.iter().map(|x| (*x - top).exp()).collect();
            let total = weights.iter().fold(T::of(0.0), |a, b| a + *b);
            for d in 0..s.head_dim {
                let sum = weights
                    .iter()
                    .zip(values)
                    .fold(T::of(0.0), |sum, (w, v)| sum + *w * v[at + d]);
                out.push(sum / total);
            }
        }
        out
    }

    pub fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }
}

/// f32 or f64.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    fn of(v: f32) -> Self;
    fn exp(self) -> Self;
    fn sqrt(self) -> Self;
    fn sin_cos(angle: f32) -> (Self, Self);
}

impl Real for f32 {
    fn of(v: f32) -> f32 {
        v
    }
    fn exp(self) -> f32 {
        f32::exp(self)
    }
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    fn sin_cos(angle: f32) -> (f32, f32) {
        f32::sin_cos(angle)
    }
}

impl Real for f64 {
    fn of(v: f32) -> f64 {
        v.into()
    }
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    fn sin_cos(angle: f32) -> (f64, f64) {
        f64::sin_cos(angle.into())
    }
}

fn row<T: Real>(w: &Tensor, index: usize) -> Vec<T> {
    w.values[index * w.cols..(index + 1) * w.cols]
        .iter()
        .map(|v| T::of(*v))
        .collect()
}

fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    a.iter()
        .zip(b)
        .fold(T::of(0.0), |sum, (a, b)| sum + *a * *b)
}

fn times<T: Real>(w: &Tensor, x: &[T]) -> Vec<T> {
    (0..w.rows)
        .map(|r| {
            let w = &w.values[r * w.cols..(r + 1) * w.cols];
            w.iter()
                .zip(x)
                .fold(T::of(0.0), |sum, (w, x)| sum + T::of(*w) * *x)
        })
        .collect()
}

fn add<T: Real>(res: &mut [T], delta: &[T]) {
    for (r, d) in res.iter_mut().zip(delta) {
        *r = *r + *d;
    }
}

fn rms<T: Real>(x: &[T], w: &Tensor, eps: f32) -> Vec<T> {
    let mean = dot(x, x) / T::of(x.len() as f32);
    let r = T::of(1.0) / (mean + T::of(eps)).sqrt();
    x.iter()
        .zip(&w.values)
        .map(|(x, w)| *x * r * T::of(*w))
        .collect()
}
