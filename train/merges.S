// vocab.bpe as read-only data between two symbols, so that every binary finds its tokenizer wherever it is run from.
// The assembler searches its include path (-I) for the file.
    .section .rodata
    .global grt_merges_begin
    .global grt_merges_end
grt_merges_begin:
    .incbin "vocab.bpe"
grt_merges_end:
    .section .note.GNU-stack, "", %progbits
