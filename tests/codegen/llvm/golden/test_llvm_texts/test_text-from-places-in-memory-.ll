; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %I, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.22, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i32, ptr %I, i64 %.9
  %.11 = load <8 x i32>, ptr %.10, align 4
  %.12 = getelementptr i32, ptr %.10, i64 8
  %.13 = load <8 x i32>, ptr %.12, align 4
  %.14 = sext <8 x i32> %.11 to <8 x i64>
  %.15 = sext <8 x i32> %.13 to <8 x i64>
  %.16 = getelementptr float, ptr %A, <8 x i64> %.14
  %.17 = call <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr> align 4 %.16, <8 x i1> splat (i1 true), <8 x float> zeroinitializer)
  %.18 = getelementptr float, ptr %A, <8 x i64> %.15
  %.19 = call <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr> align 4 %.18, <8 x i1> splat (i1 true), <8 x float> zeroinitializer)
  %.20 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.17, ptr %.20, align 4
  %.21 = getelementptr float, ptr %.20, i64 8
  store <8 x float> %.19, ptr %.21, align 4
  %i_next.22 = add nuw nsw i64 %i.8, 1
  %.23 = icmp slt i64 %i_next.22, %.4
  br i1 %.23, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr>, <8 x i1>, <8 x float>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %I, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.16, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 16
  %.10 = getelementptr i32, ptr %I, i64 %.9
  %.11 = load <16 x i32>, ptr %.10, align 4
  %.12 = sext <16 x i32> %.11 to <16 x i64>
  %.13 = getelementptr float, ptr %A, <16 x i64> %.12
  %.14 = call <16 x float> @llvm.masked.gather.v16f32.v16p0(<16 x ptr> align 4 %.13, <16 x i1> splat (i1 true), <16 x float> zeroinitializer)
  %.15 = getelementptr float, ptr %C, i64 %.9
  store <16 x float> %.14, ptr %.15, align 4
  %i_next.16 = add nuw nsw i64 %i.8, 1
  %.17 = icmp slt i64 %i_next.16, %.4
  br i1 %.17, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.gather.v16f32.v16p0(<16 x ptr>, <16 x i1>, <16 x float>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
