; x86-64-v3

@table.0 = private unnamed_addr constant [3 x float] [float 0x3FF0000000000000, float 0x4000000000000000, float 0x4010000000000000], align 64
define void @f(ptr noalias readonly captures(none) align 8 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.26, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr i64, ptr %A, i64 %.9
  %.11 = load <4 x i64>, ptr %.10, align 8
  %.12 = getelementptr i64, ptr %.10, i64 4
  %.13 = load <4 x i64>, ptr %.12, align 8
  %.14 = call <4 x i64> @llvm.smin.v4i64(<4 x i64> %.11, <4 x i64> splat (i64 2))
  %.15 = call <4 x i64> @llvm.smin.v4i64(<4 x i64> %.13, <4 x i64> splat (i64 2))
  %.16 = call <4 x i64> @llvm.smax.v4i64(<4 x i64> %.14, <4 x i64> zeroinitializer)
  %.17 = call <4 x i64> @llvm.smax.v4i64(<4 x i64> %.15, <4 x i64> zeroinitializer)
  %.18 = getelementptr inbounds float, ptr @table.0, <4 x i64> %.16
  %.19 = call <4 x float> @llvm.masked.gather.v4f32.v4p0(<4 x ptr> align 4 %.18, <4 x i1> splat (i1 true), <4 x float> zeroinitializer)
  %.20 = getelementptr inbounds float, ptr @table.0, <4 x i64> %.17
  %.21 = call <4 x float> @llvm.masked.gather.v4f32.v4p0(<4 x ptr> align 4 %.20, <4 x i1> splat (i1 true), <4 x float> zeroinitializer)
  %.22 = fadd contract <4 x float> %.19, <float 0x3FF0000000000000, float 0x4000000000000000, float 0x4008000000000000, float 0x4010000000000000>
  %.23 = fadd contract <4 x float> %.21, <float 0x4014000000000000, float 0x4018000000000000, float 0x401C000000000000, float 0x4020000000000000>
  %.24 = getelementptr float, ptr %C, i64 %.9
  store <4 x float> %.22, ptr %.24, align 4
  %.25 = getelementptr float, ptr %.24, i64 4
  store <4 x float> %.23, ptr %.25, align 4
  %i_next.26 = add nuw nsw i64 %i.8, 1
  %.27 = icmp slt i64 %i_next.26, %.4
  br i1 %.27, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <4 x float> @llvm.masked.gather.v4f32.v4p0(<4 x ptr>, <4 x i1>, <4 x float>)
declare <4 x i64> @llvm.smax.v4i64(<4 x i64>, <4 x i64>)
declare <4 x i64> @llvm.smin.v4i64(<4 x i64>, <4 x i64>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

@table.0 = private unnamed_addr constant [3 x float] [float 0x3FF0000000000000, float 0x4000000000000000, float 0x4010000000000000], align 64
define void @f(ptr noalias readonly captures(none) align 8 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.18, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr i64, ptr %A, i64 %.9
  %.11 = load <8 x i64>, ptr %.10, align 8
  %.12 = call <8 x i64> @llvm.smin.v8i64(<8 x i64> %.11, <8 x i64> splat (i64 2))
  %.13 = call <8 x i64> @llvm.smax.v8i64(<8 x i64> %.12, <8 x i64> zeroinitializer)
  %.14 = getelementptr inbounds float, ptr @table.0, <8 x i64> %.13
  %.15 = call <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr> align 4 %.14, <8 x i1> splat (i1 true), <8 x float> zeroinitializer)
  %.16 = fadd contract <8 x float> %.15, <float 0x3FF0000000000000, float 0x4000000000000000, float 0x4008000000000000, float 0x4010000000000000, float 0x4014000000000000, float 0x4018000000000000, float 0x401C000000000000, float 0x4020000000000000>
  %.17 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.16, ptr %.17, align 4
  %i_next.18 = add nuw nsw i64 %i.8, 1
  %.19 = icmp slt i64 %i_next.18, %.4
  br i1 %.19, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr>, <8 x i1>, <8 x float>)
declare <8 x i64> @llvm.smax.v8i64(<8 x i64>, <8 x i64>)
declare <8 x i64> @llvm.smin.v8i64(<8 x i64>, <8 x i64>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
