"""The dialect `hf`: made of the response template that a tokenizer ships."""
