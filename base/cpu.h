#define TR_CKPT_EXTRA 1
