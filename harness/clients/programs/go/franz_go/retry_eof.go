//go:build newest

package main

import "github.com/twmb/franz-go/pkg/kgo"

func init() { alwaysRetryEOF = func() kgo.Opt { return kgo.AlwaysRetryEOF() } }
