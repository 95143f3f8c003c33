use arrow_buffer::i256;

use super::*;

#[test]
fn decimals_have_their_sign() {
    let number = |bytes: &[u8]| signed(bytes);
    assert_eq!(number(&[]), Some(i256::ZERO));
    assert_eq!(number(&[0xff]), Some(i256::MINUS_ONE));
    assert_eq!(number(&[0, 0xff]), Some(i256::from_i128(255)));
    assert_eq!(number(&[0xff; 40]), Some(i256::MINUS_ONE));
    assert_eq!(number(&[[0].as_slice(), &[0xff; 32]].concat()), None);
    assert_eq!(number(&[[1].as_slice(), &[0; 32]].concat()), None);
}
