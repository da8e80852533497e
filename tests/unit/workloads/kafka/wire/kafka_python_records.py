"""kafka-python's record batches: an implementation independent of ours."""

import warnings

with warnings.catch_warnings():
    # its package reads its definitions with importlib.resources.read_text
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.util import decode_varint, encode_varint

__all__ = ["DefaultRecordBatchBuilder", "decode_varint", "encode_varint"]
