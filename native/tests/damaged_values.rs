//! Damaged values of Avro: a reason for each bad row at most, whole rows beside it, in bounded memory; and plans that do not fit.

use std::sync::Arc;

use arrow_array::Array;
use arrow_schema::{DataType, Field, TimeUnit};
use kafka_ordered_ops_native::decode::avro_plan::{Frame, Reasons, Told, decode, plan};
use kafka_ordered_ops_native::decode::cursor::Fault;
use kafka_ordered_ops_native::decode::input::Input;

/// A byte asks for a row of so many bytes at most, or for so many items without bytes: see the types below.
const BYTES_PER_BYTE: usize = 1 << 14;

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Mostly small numbers: they ask for items, branches and lengths that exist.
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most);
        (0..length).map(|_| if self.below(4) > 0 { self.below(9) as u8 } else { self.next() as u8 }).collect()
    }
}

fn nullable(name: &str, kind: DataType) -> Arc<Field> {
    Arc::new(Field::new(name, kind, true))
}

/// Plain steps, and a type that each fills.
fn plain(random: &mut Random) -> (Told, DataType) {
    let told = |kind: &str, numbers: &[i64]| (kind.to_owned(), numbers.to_vec(), vec![], vec![]);
    match random.below(17) {
        0 => (told("null", &[]), DataType::Null),
        1 => (told("boolean", &[]), DataType::Boolean),
        2 => (told("int", &[]), DataType::Date32),
        3 => (told("int", &[]), DataType::Float32),
        4 => (told("long", &[]), DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))),
        5 => (told("long", &[]), DataType::Float64),
        6 => (told("float", &[]), DataType::Float64),
        7 => (told("double", &[]), DataType::Float64),
        8 => (told("bytes", &[]), DataType::Binary),
        9 => (told("fixed", &[3]), DataType::FixedSizeBinary(3)),
        10 => (told("decimal", &[-1, 5]), DataType::Decimal128(5, 2)),
        11 => (told("decimal", &[17, 76]), DataType::Decimal256(76, 0)),
        12 => (told("text uuid", &[]), DataType::Utf8),
        13 => (told("bytes uuid", &[]), DataType::Utf8),
        14 => (told("time", &[0, 86_400_000]), DataType::Time32(TimeUnit::Millisecond)),
        15 => {
            let texts = vec!["A".to_owned(), "no B".to_owned()];
            (("symbols".to_owned(), vec![1, 0], texts, vec![]), DataType::Utf8)
        }
        _ => (told("string", &[]), DataType::Utf8),
    }
}

/// Add a step and those that it uses; return the type that it fills, its place, and whether it takes no bytes.
fn step(random: &mut Random, depth: usize, steps: &mut Vec<Told>) -> (DataType, i64, bool) {
    let mut numbers = Vec::new();
    let (name, kind, is_empty) = match random.below(if depth == 0 { 1 } else { 6 }) {
        1 => {
            let (kind, place, is_empty) = step(random, depth - 1, steps);
            numbers = vec![place, is_empty.into()];
            ("array", DataType::List(nullable("item", kind)), false)
        }
        2 => {
            let (kind, place, _) = step(random, depth - 1, steps);
            numbers = vec![place];
            let entries = vec![Arc::new(Field::new("key", DataType::Utf8, false)), nullable("value", kind)];
            let entry = Field::new("entries", DataType::Struct(entries.into()), false);
            ("map", DataType::Map(Arc::new(entry), false), false)
        }
        3 => {
            let mut fields = Vec::new();
            let mut all_empty = true;
            for number in 0..random.below(4) {
                let (kind, place, is_empty) = step(random, depth - 1, steps);
                all_empty &= is_empty;
                if random.below(5) == 0 {
                    numbers.extend([-1, place]);
                } else {
                    numbers.extend([fields.len() as i64, place]);
                    fields.push(nullable(&format!("f{number}"), kind));
                }
            }
            ("record", DataType::Struct(fields.into()), all_empty)
        }
        4 => {
            let (kind, place, _) = step(random, depth - 1, steps);
            steps.push(("null".to_owned(), vec![], vec![], vec![]));
            steps.push(("refused".to_owned(), vec![], vec!["not this".to_owned()], vec![]));
            let last = steps.len() as i64 - 1;
            numbers = vec![last - 1, place, last];
            ("union", kind, false)
        }
        5 => {
            let (kind, place, is_empty) = step(random, depth - 1, steps);
            numbers = vec![1, place];
            let fields = vec![nullable("other", DataType::Int64), nullable("this", kind)];
            ("member", DataType::Struct(fields.into()), is_empty)
        }
        _ => {
            let (told, kind) = plain(random);
            let is_empty = told.0 == "null";
            steps.push(told);
            return (kind, steps.len() as i64 - 1, is_empty);
        }
    };
    steps.push((name.to_owned(), numbers, vec![], vec![]));
    (kind, steps.len() as i64 - 1, is_empty)
}

fn decoded(kind: &DataType, steps: &[Told], values: &[Vec<u8>]) -> Result<(arrow_array::ArrayRef, Reasons), Fault> {
    let mut offsets = 0_i32.to_le_bytes().to_vec();
    let mut data = Vec::new();
    for value in values {
        data.extend(value);
        offsets.extend((data.len() as i32).to_le_bytes());
    }
    let input = Input { data: &data, offsets: &offsets, width: 4, base: 0, validity: None, first: 0 };
    let step = plan(steps.to_vec()).map_err(Fault::Plan)?;
    decode(kind, input, Frame(0), |_| Some(Ok(step.clone())))
}

/// Cut bytes off behind a whole value, if one is there.
fn shorten(kind: &DataType, steps: &[Told], value: &mut Vec<u8>) {
    for length in 0..value.len() {
        let (_, reasons) = decoded(kind, steps, &[value[..length].to_vec()]).expect("a plan that fits");
        if reasons.is_empty() {
            value.truncate(length);
            return;
        }
    }
}

fn cases() -> u64 {
    std::env::var("DAMAGED_RESPONSES").ok().and_then(|count| count.parse().ok()).unwrap_or(200_000) / 20
}

#[test]
fn each_row_is_decoded_as_if_it_were_alone() {
    let (mut bad, mut good) = (0, 0);
    for seed in 1..=cases() {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut steps = Vec::new();
        let (kind, _, _) = step(&mut random, 3, &mut steps);
        let mut values: Vec<Vec<u8>> = (0..4).map(|_| random.bytes(40)).collect();
        for value in values.iter_mut().take(2) {
            shorten(&kind, &steps, value);
        }
        let (array, reasons) = decoded(&kind, &steps, &values).unwrap_or_else(|fault| panic!("seed {seed}: {fault:?}"));
        array.to_data().validate_full().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((array.len(), array.data_type()), (values.len(), &kind), "seed {seed}");
        let size: usize = values.iter().map(Vec::len).sum();
        assert!(array.get_array_memory_size() < (size + 4) * BYTES_PER_BYTE, "seed {seed}");
        for (row, value) in values.iter().enumerate() {
            let (alone, reason) = decoded(&kind, &steps, std::slice::from_ref(value)).expect("a plan that fits");
            let here = reasons.iter().find(|(bad, _)| *bad == row).map(|(_, why)| why);
            assert_eq!(reason.first().map(|(_, why)| why), here, "seed {seed}, row {row}");
            assert_eq!(alone.to_data(), array.slice(row, 1).to_data(), "seed {seed}, row {row}");
            if here.is_some() { bad += 1 } else { good += 1 }
        }
    }
    assert!(bad > cases() && good > cases() / 2, "{bad} bad, {good} good");
}

#[test]
fn plans_that_do_not_fit_are_errors() {
    for seed in 1..=cases() {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let (mut steps, mut others) = (Vec::new(), Vec::new());
        let (kind, _, _) = step(&mut random, 2, &mut steps);
        step(&mut random, 2, &mut others);
        let place = random.below(others.len());
        if let Some(number) = others[place].1.first_mut() {
            *number = random.below(9) as i64 - 2;
        }
        let values: Vec<Vec<u8>> = (0..3).map(|_| random.bytes(30)).collect();
        if let Ok((array, _)) = decoded(&kind, &others, &values) {
            array.to_data().validate_full().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_errors() {
    let kind = DataType::Int64;
    let step = plan(vec![("long".to_owned(), vec![], vec![], vec![])]).expect("a plan");
    for offsets in [vec![0, 9], vec![5, 2], vec![-1, 1], vec![i32::MIN, i32::MAX]] {
        let offsets: Vec<u8> = offsets.into_iter().flat_map(i32::to_le_bytes).collect();
        let input = Input { data: &[2], offsets: &offsets, width: 4, base: i64::MIN, validity: None, first: 0 };
        assert!(decode(&kind, input, Frame(0), |_| Some(Ok(step.clone()))).is_err());
        assert!(decode(&kind, Input { base: 0, ..input }, Frame(0), |_| Some(Ok(step.clone()))).is_err());
    }
    let offsets = [0_i32.to_le_bytes(), 1_i32.to_le_bytes()].concat();
    let input = Input { data: &[2], offsets: &offsets, width: 4, base: 0, validity: Some(&[]), first: 3 };
    assert!(decode(&kind, input, Frame(0), |_| Some(Ok(step.clone()))).is_err());
}
