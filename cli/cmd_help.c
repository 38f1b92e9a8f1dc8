#include "base/nearest.h"
#include "cli/cli.h"
#include "config/elsewhere.h"
#include "config/schema.h"
#include "layers/preset.h"
#include "pipeline/orders/generate.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 100, KEY_COLUMN = 36 }; /* LINE: what the details of commands have at most */

/* Prints `text` in lines of at most LINE characters, unless a word is longer. The first one begins
 * at `column`; the later ones are indented by `indent`. */
static void print_wrapped(const char *text, int column, int indent) {
    int at = column;
    for (const char *word = text; *word;) {
        const int length = (int)strcspn(word, " ");
        const bool first = word == text;
        if (!first && at + 1 + length > LINE) {
            (void)printf("\n%*s", indent, "");
            at = indent;
        } else if (!first) {
            (void)putchar(' ');
            at++;
        }
        (void)printf("%.*s", length, word);
        at += length;
        word += length;
        word += strspn(word, " ");
    }
    (void)putchar('\n');
}

static void print_range(const tr_key *key) {
    char takes[512];
    (void)printf("  takes    %s", tr_key_describe(key, takes, sizeof takes));
    if (key->type == TR_KEY_INT) (void)printf(", %.0f to %.0f", key->min, key->max);
    if (key->type == TR_KEY_FLOAT) (void)printf(", %.15g to %.15g", key->min, key->max);
    (void)printf("\n");
}

static void print_presets(void) {
    for (int i = 0; i < tr_preset_count; i++) {
        tr_model_config m = tr_presets[i].model;
        if (tr_model_complete(&m) != TR_OK) continue;
        (void)printf(
            "  %-12s %s, layers %lld, width %lld, heads %lld (key heads %lld), MLP %lld, context "
            "%lld, vocabulary %lld\n",
            tr_presets[i].name, m.family, (long long)m.layers, (long long)m.width,
            (long long)m.heads, (long long)m.kv_heads, (long long)m.mlp_width, (long long)m.context,
            (long long)m.vocab);
    }
}

static void print_key(const tr_key *key) {
    (void)printf("%s\n  ", key->name);
    print_wrapped(key->help, 2, 2);
    print_range(key);
    if (key->fallback) (void)printf("  default  %s\n", key->fallback);
    if (key->on_gpu) (void)printf("  on GPUs  %s\n", key->on_gpu);
    const char *example = key->example ? key->example : key->fallback;
    /* YAML must see a text, and the shell one word. */
    const char *in_yaml = *example && strchr("*&!|>%@`[]{}#,", *example) ? "'" : "";
    const char *in_shell = strpbrk(example, " *?[]{}()|&;<>$`\\\"!#~") ? "'" : "";
    (void)printf("  in YAML  %s: %s%s%s\n  argument %s%s=%s%s\n", key->name, in_yaml, example,
                 in_yaml, in_shell, key->name, example, in_shell);
    if (!strcmp(key->name, "model.preset")) print_presets();
}

/* Prints one line for each key of the section; NULL: for every key. */
static void print_keys(const char *section) {
    for (int i = 0; i < tr_schema_count; i++) {
        const tr_key *key = &tr_schema[i];
        size_t length = strcspn(key->name, "."), all = section ? strlen(section) : 0;
        if (section && (strncmp(key->name, section, all) || key->name[all] != '.')) continue;
        bool first = i == 0 || strncmp(tr_schema[i - 1].name, key->name, length + 1) != 0;
        if (first) (void)printf("\n%.*s\n", (int)length, key->name);
        const int column = printf("  %-24s %-8s ", key->name, key->fallback ? key->fallback : "-");
        print_wrapped(key->help, column, KEY_COLUMN);
    }
}

static void print_overview(void) {
    (void)printf("trireme: trains models too large for one device\n\ncommands\n");
    for (int i = 0; i < cli_command_count; i++) {
        (void)printf("  trireme %s%s%s\n      ", cli_commands[i].name,
                     *cli_commands[i].arguments ? " " : "", cli_commands[i].arguments);
        print_wrapped(cli_commands[i].summary, 6, 6);
    }
    (void)printf(
        "\nEvery command takes --help. --backtrace before a command also prints the source "
        "locations\n"
        "that an error passed through. `trireme --version` prints the version.\n"
        "\nA config is a YAML file of the keys below, shown with their defaults. Every key can "
        "also be\n"
        "given as an argument, like train.steps=100. `trireme help KEY` explains a key.\n");
    print_keys(NULL);
}

enum { MOST_WORDS = 32 };

/* Returns true when the list has this word, and not only as a part of another one. */
static bool lists(const char *list, const char *word) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
    const size_t length = strlen(word);
    if (length == 0 || word[strspn(word, letters)]) return false;
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || !strchr(letters, at[-1])) &&
            (!at[length] || !strchr(letters, at[length])))
            return true;
    return false;
}

/* Returns true for a choice of the key, or a schedule that trains. */
static bool is_value(const tr_key *key, const char *word) {
    bool trains;
    const char *name;
    if (key->type == TR_KEY_CHOICE) return lists(key->choices, word);
    for (int k = 0; key->type == TR_KEY_SCHEDULE && (name = tr_schedule_name(k, &trains)); k++)
        if (trains && strcmp(name, word) == 0) return true;
    return false;
}

/* Fails with TR_ERR_USAGE and the topic that explains the word, when it is a section within another
 * one, a part or an option of a command, a value of a key, or another program's command. Returns
 * TR_OK for other words. */
static tr_status known_otherwise(const char *word) {
    char option[64];
    const cli_command *whole = cli_find_part(word);
    if (whole)
        return TR_FAIL(TR_ERR_USAGE, "%s is a part of %s, which `trireme help %s` explains", word,
                       whole->name, whole->name);
    for (int i = 0; i < tr_schema_count; i++) {
        const char *name = tr_schema[i].name, *at = strcasestr(name, word);
        const size_t length = strlen(word);
        if (length > 0 && at && at > name && at[-1] == '.' && at[length] == '.')
            return TR_FAIL(TR_ERR_USAGE,
                           "unknown command or key '%s'; did you mean `trireme help %.*s`?", word,
                           (int)(at + length - name), name);
    }
    (void)snprintf(option, sizeof option, "--%.60s", word + strspn(word, "-"));
    for (int i = 0; i < cli_command_count; i++)
        if (option[2] && lists(cli_commands[i].arguments, option))
            return TR_FAIL(TR_ERR_USAGE, "%s is an option, which `trireme help %s` explains",
                           option, cli_commands[i].name);
    for (int i = 0; i < tr_schema_count; i++)
        if (is_value(&tr_schema[i], word))
            return TR_FAIL(TR_ERR_USAGE, "%s is a value of %s, which `trireme help %s` explains",
                           word, tr_schema[i].name, tr_schema[i].name);
    const char *ours = tr_command_elsewhere(word);
    if (ours)
        return TR_FAIL(TR_ERR_USAGE, "unknown command or key '%s'; did you mean %s?", word, ours);
    return TR_OK;
}

/* Fails with the command, section or key that the word probably means. */
static tr_status unknown_word(const char *word) {
    const char *words[MOST_WORDS];
    int count = 0;
    const int key = tr_schema_nearest(word);
    if (key < 0 || !tr_schema_ends_with(key, word)) TR_TRY(known_otherwise(word));
    for (int i = 0; i < cli_command_count && count < MOST_WORDS; i++)
        words[count++] = cli_commands[i].name;
    for (int i = 0; i < tr_section_count && count < MOST_WORDS; i++)
        words[count++] = tr_sections[i];
    const int near = strchr(word, '.') ? -1 : tr_nearest(word, tr_word_at, words, count);
    if (near < 0 && key < 0)
        return TR_FAIL(TR_ERR_USAGE, "unknown command or key '%s'; `trireme help` lists both",
                       word);
    return TR_FAIL(TR_ERR_USAGE, "unknown command or key '%s'; did you mean `trireme help %s`?",
                   word, near >= 0 ? words[near] : tr_schema[key].name);
}

tr_status cli_help(cli_context *cli, int argc, char **argv) {
    (void)cli;
    if (argc > 2) return cli_usage("help", "help takes one word");
    if (argc < 2) {
        print_overview();
        return 0;
    }
    const char *word = argv[1];
    bool known = false;
    for (int i = 0; i < cli_command_count; i++)
        if (!strcmp(cli_commands[i].name, word)) {
            (void)printf("trireme %s%s%s\n    ", word, *cli_commands[i].arguments ? " " : "",
                         cli_commands[i].arguments);
            print_wrapped(cli_commands[i].summary, 4, 4);
            if (cli_commands[i].details)
                (void)printf("\nOptions, with the default in brackets:\n%s",
                             cli_commands[i].details);
            known = true;
        }
    int index = tr_schema_find(word);
    if (index >= 0) print_key(&tr_schema[index]);
    bool section = tr_schema_is_section(word); /* train and data are commands and sections */
    if (section) print_keys(word);
    return known || section || index >= 0 ? TR_OK : unknown_word(word);
}
