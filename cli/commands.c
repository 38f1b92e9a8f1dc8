#include "cli/cli.h"

/* Of sample and eval. */
#define WITHOUT_TOKENIZER                                                                          \
    "Without a tokenizer a text is bytes for a run on bytes, and for a folder or an imported "     \
    "run\n"                                                                                        \
    "with at most 512 tokens. Other texts, and those for a model.vocab below 256, end with exit\n" \
    "code 78. When nobody reads stdout any more, the exit code is 74.\n"

/* Of schedule and simulate. */
#define SCHEDULE_OPTIONS                                                                           \
    "  -p P, -m M               ranks, and micro-batches of a step; a file has its own\n"          \
    "  -v V                     stages of a rank (the schedule's own number, or 1)\n"              \
    "  -N GROUP                 micro-batches that interleaved schedules take at a time (P)\n"     \
    "  --costs F=1,I=1,W=1,c=0  times of a micro-batch on all stages of a rank: forward, input\n"  \
    "                           gradient, weight gradient; and of a transfer\n"                    \
    "  --memory mB=1,mW=0,cap=0 what a micro-batch holds on a rank until its input gradient, "     \
    "and\n"                                                                                        \
    "                           until its weight gradient; and the most that a rank may hold\n"    \
    "                           (0: any amount)\n"

const cli_command cli_commands[] = {
    {"ckpt",
     "ls RUN | verify RUN [STEP] | import FOLDER|FILE RUN | export RUN FOLDER [--adapter] "
     "[--dtype fp32|bf16|fp16] [--step N] [--max-shard-size 5GB]",
     "lists or verifies the checkpoints of a run; import makes a run of a model of transformers "
     "(a folder, or a .safetensors file next to its config.json) or of llm.c (a .bin file); export "
     "writes a run's model as a folder of transformers, or of PEFT",
     cli_ckpt,
     "  --adapter                only the low-rank updates (model.lora), as an adapter of PEFT; "
     "without\n"
     "                           it they are added to the weights\n"
     "  --dtype fp32|bf16|fp16   type of the exported tensors (the one that was imported, or "
     "fp32)\n"
     "  --step N                 step to export (the newest valid one)\n"
     "  --max-shard-size SIZE    largest file of an export (5GB)\n"
     "An imported run is at step 0 and has no moments of the optimizer: continue it with\n"
     "`trireme train CONFIG --resume`, or start other runs from the folder with model.init_from.\n"
     "A folder of PEFT (LoRA) is not imported: name it in model.init_from.\n"
     "Ctrl-C or SIGTERM ends an import or an export with exit code 75 and leaves nothing of it.\n"
     "docs/models.md has examples.\n"},
    {"data",
     "CONFIG|FILE [key=value ...] | tokenize FILES... --tokenizer FILE|DIR -o PREFIX [--key KEY] "
     "[--no-special] [--threads N] | train-bpe FILES... --vocab N -o FILE|DIR [--key KEY] "
     "[--pattern gpt2|llama3|qwen|o200k]",
     "shows what data files contain, and a bigram baseline; or turns text into token files; or "
     "trains a tokenizer",
     cli_data,
     "tokenize -o PREFIX writes PREFIX.bin, PREFIX.idx (Megatron's form), PREFIX.tokenizer.json\n"
     "  --tokenizer FILE|DIR     tokenizer.json, a tiktoken file, or a folder with one\n"
     "  --key KEY                of JSON lines: the key of the text (text)\n"
     "  --no-special             a special token's text is ordinary text\n"
     "  --threads N              (the cores of this machine)\n"
     "train-bpe -o FILE|DIR writes tokenizer.json\n"
     "  --key KEY                of JSON lines: the key of the text (text)\n"
     "  --vocab N                number of tokens, at least 256 and the special ones\n"
     "  --pattern NAME           how text is split into words (gpt2)\n"
     "Texts may be compressed (.gz, .zst). Conversations need no token files: data.format "
     "instruct\n"
     "reads them. docs/data.md has examples.\n"},
    {"doctor", "", "checks this machine and says what to fix", cli_doctor, NULL},
    {"eval", "RUN|DIR [--data FILES] [--step N] [--json] [key=value ...]",
     "computes the loss of a text, or answers multiple-choice questions, with the model of a "
     "checkpoint or of a folder of transformers",
     cli_eval,
     "  --data FILES             text or token files, several as in data.path; or questions: JSON\n"
     "                           lines, or llm.c's hellaswag_val.bin (the run's validation part)\n"
     "  --step N                 step of the checkpoint (the newest valid one)\n"
     "  --json                   writes one JSON object\n"
     "Keys set device.name, train.precision, train.micro_batch, data.format, data.tokenizer, a "
     "smaller\nmodel.context, and the layout: `trireme run -n 4 eval RUN parallel.pp=2 "
     "parallel.dp=2`. Without\nparallel keys every rank is a pipeline stage. docs/evaluation.md "
     "describes the numbers.\n" WITHOUT_TOKENIZER},
    {"help", "[COMMAND|KEY|SECTION]", "explains commands and the keys of a config", cli_help, NULL},
    {"plan", "[CONFIG] [--search RANKS] [--rate GFLOP/s] [key=value ...]",
     "computes the memory of every rank and the time of a step and of the run, without running it; "
     "or searches the layout with the shortest step",
     cli_plan,
     "  --search RANKS           lists the best layouts of RANKS ranks, with the keys of the best "
     "one;\n"
     "                           parallel.pp, tp, dp, zero, sequence, schedule and virtual,\n"
     "                           train.micro_batch, train.recompute and device.offload are free\n"
     "                           unless given as arguments\n"
     "  --rate GFLOP/s           speed of a rank, like 400000 for a GPU that reaches 400 TFLOP/s\n"
     "                           (the speed of this machine, which is measured)\n"
     "Needs no config when keys are given. For GPUs of another machine set device.name and\n"
     "device.memory. Ends with exit code 76 when a rank needs more than it may use, and names\n"
     "changes that fit. docs/layout.md finds a layout,\n"
     "docs/schedules.md explains the output, docs/memory.md what takes how many bytes.\n"},
    {"run", "-n RANKS [--hostfile FILE] [--mpi \"OPTIONS\"] [--restarts N] COMMAND [ARGUMENTS]",
     "runs a command on several ranks, under mpirun", cli_run,
     "  -n RANKS                 number of ranks; train needs parallel.pp * tp * dp of them\n"
     "  --hostfile FILE          hosts, one a line with its slots=N, as mpirun reads them (this "
     "one)\n"
     "  --mpi \"OPTIONS\"          further options of mpirun\n"
     "  --restarts N             starts train again, up to N times, when a rank was lost (77): "
     "from "
     "the\n"
     "                           newest valid checkpoint, or from the start when there is none "
     "(0)\n"},
    {"sample",
     "RUN|DIR [-p TEXT | --prompts FILE | --interactive [--system TEXT]] [-n TOKENS] "
     "[--temperature T] [--top-k K] "
     "[--top-p P] "
     "[--min-p P] [--repetition-penalty R] [--stop TEXT] [--no-special] [--seed S] [--step N] "
     "[key=value ...]",
     "writes text with the model of a checkpoint, or of a folder of transformers", cli_sample,
     "  -p TEXT                  the text to continue (a newline)\n"
     "  --prompts FILE           a prompt a line, empty lines are skipped; writes a line\n"
     "                           {\"prompt\":...,\"text\":...} for each prompt\n"
     "  --interactive            answers every line of stdin; with a chat template of ChatML's or\n"
     "                           Llama 3's form the lines are a user's turns, otherwise the text\n"
     "                           goes on after them. Ctrl-C ends an answer; Ctrl-C or Ctrl-D at a\n"
     "                           turn ends the conversation\n"
     "  --system TEXT            the system's turn before the user's first one, with a chat "
     "template\n"
     "  -n TOKENS                the most tokens of a text, or of an answer (200)\n"
     "  --temperature T          divides the logits; 0: always the most probable token (0.8)\n"
     "  --top-k K                draws from the K most probable tokens (0: all)\n"
     "  --top-p P                draws from the fewest tokens that have P of the probability\n"
     "                           (above 0; 1: all)\n"
     "  --min-p P                draws from tokens with at least P times the largest probability "
     "(0)\n"
     "  --repetition-penalty R   makes tokens that the text has less probable, when above 1 (1)\n"
     "  --stop TEXT              ends a text in front of this; may be given again\n"
     "  --no-special             a special token's text in a prompt is ordinary text\n"
     "  --seed S                 the same seed gives the same text (0)\n"
     "  --step N                 step of the checkpoint (the newest valid one)\n"
     "Keys set device.name, train.precision, data.tokenizer and the layout: `trireme run -n 4\n"
     "sample RUN -p TEXT parallel.pp=2 parallel.tp=2`. Without parallel keys every rank is a\n"
     "pipeline stage.\n" WITHOUT_TOKENIZER},
    {"schedule",
     "NAME|FILE [-p P -m M -v V -N GROUP] [--costs F=1,I=1,W=1,c=0] [--memory mB=1,mW=0,cap=0] "
     "[--comms] [-o FILE.csv] | check FILE.csv | show FILE|NAME... [-p P -m M -v V -N GROUP] "
     "[--costs F=1,I=1,W=1,c=0] [--memory mB=1,mW=0,cap=0] [--svg FILE] [--trace FILE]",
     "makes, checks or draws a pipeline schedule", cli_schedule,
     SCHEDULE_OPTIONS
     "  --comms                  adds every SEND and RECV\n"
     "  -o FILE.csv              writes the schedule, one row a rank (to stdout)\n"
     "  --svg FILE               writes the drawing as an image\n"
     "  --trace FILE             writes the drawing for Perfetto\n"
     "-o -, --svg - and --trace - write to stdout. docs/schedules.md explains the\n"
     "form of files.\n"},
    {"simulate",
     "--schedule FILE|NAME [-p P -m M -v V -N GROUP] [--costs F=1,I=1,W=1,c=0] "
     "[--memory mB=1,mW=0,cap=0] [--json]",
     "computes times, bubbles and memory of a pipeline schedule", cli_simulate,
     "  --schedule FILE|NAME     a CSV file, or a name (`trireme help "
     "parallel.schedule`)\n" SCHEDULE_OPTIONS "  --json                   writes one JSON object\n"
     "docs/schedules.md explains the output.\n"},
    {"train", "CONFIG [--resume[=auto]] [--time-limit T] [--trace N] [--debug-nan] [key=value ...]",
     "trains a model, on one rank or several", cli_train,
     "  --resume                 continues the run in log.dir from its newest valid checkpoint\n"
     "  --resume=auto            does so if there is one, and otherwise starts the run\n"
     "  --time-limit T           saves and ends with exit code 75 in time: 90, 30m, 1h30m\n"
     "  --trace N                records N steps in trace.json, for Perfetto\n"
     "  --debug-nan              names layer, micro-batch and operator of the first value that is\n"
     "                           not finite; slow\n"},
};
const int cli_command_count = sizeof cli_commands / sizeof *cli_commands;
